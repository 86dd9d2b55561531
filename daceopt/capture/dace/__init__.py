"""SDFGs that DaCe's own frontend makes of ``@dace.program``s become graphs."""
