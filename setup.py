"""Package mapping; everything else about the distribution stands in pyproject.toml."""

from __future__ import annotations

from setuptools import find_packages, setup

# What users read, copy and add to stands at the top of the tree but imports under ``daceopt``.
FOLDERS = {"daceopt": "daceopt", "daceopt.transformations": "transformations", "daceopt.recipes": "recipes"}

setup(
    packages=[
        name for top, folder in FOLDERS.items() for name in [top, *(f"{top}.{p}" for p in find_packages(folder))]
    ],
    package_dir=FOLDERS,
    package_data={
        "": [
            "py.typed",
            "**/include/*",
            "**/include/**/*",
            "**/src/*.cpp",
            "**/*.css",
            "**/*.js",
            "**/*.html",
            "**/*.svg",
            "**/*.toml",
            "**/*.npz",
        ]
    },
)
