// The error state of one run: library calls report into it, the entry point of a program clears and returns it.
#pragma once
#include <cstdio>

namespace daceopt {

struct Status {
    bool failed = false;
    bool index = false;  // the error is an index out of range
    bool doubt = false;  // no error: what was computed has a NaN that a careful run may not have
    char message[512] = {0};
};

// Per thread, because any number of threads may run one program. Parallel regions report after they join.
inline thread_local Status status;

// Whether calls do without the short cuts that turn some numbers into NaN. A run is careless at first, in the thread that
// began it; where it ends in doubt, it is careful when it runs again.
inline thread_local bool careful = true;

class Careless {
public:
    Careless() { careful = false; }
    ~Careless() { careful = true; }
};

// What waits, at the end of a run however it ends, for those that still write its memory; null where there is nobody.
inline thread_local void (*at_end)() = nullptr;

inline void clear_status() {
    status.failed = status.index = status.doubt = false;
    status.message[0] = 0;
}

// Keeps the first error of a run.
inline void fail(const char* where, const char* what) {
    if (status.failed) return;
    status.failed = true;
    std::snprintf(status.message, sizeof status.message, "%s: %s", where, what);
}

inline void fail_index(const char* where, const char* what) {
    if (!status.failed) status.index = true;
    fail(where, what);
}

}  // namespace daceopt
