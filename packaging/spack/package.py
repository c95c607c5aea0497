# SPDX-License-Identifier: MIT OR Apache-2.0
#
# A recipe for Spack, in a repository of packages as packages/libdat/package.py. The project has no address for
# downloads yet: `make dist` makes the tarball, and `spack install --no-checksum libdat`, run in the directory
# with the tarball, builds it.

import os

from spack.package import *


class Libdat(MakefilePackage):
    """uDAPL (the DAT API 1.2 and 2.0): RDMA for MPI libraries, clusters of databases and storage, on
    InfiniBand, RoCE and iWARP cards, and on machines without any over shared memory and TCP."""

    license("MIT OR Apache-2.0", checked_by="libdat")

    version("0.1.0", url=f"file://{os.getcwd()}/libdat-0.1.0.tar.xz")

    depends_on("c", type="build")
    depends_on("gmake", type="build")
    # The least that Cargo.toml asks for.
    depends_on("rust@1.89:", type="build")
    # GNU ld takes one version script only; the compiler of Rust passes one of its own.
    depends_on("llvm+lld", type="build")
    # Loaded at run time by the provider for RDMA devices, where there are any.
    depends_on("rdma-core@30:", type="run")

    conflicts("platform=darwin")
    conflicts("platform=windows")

    def build(self, spec, prefix):
        make("libs")

    def install(self, spec, prefix):
        # Without a manifest: Spack knows what it has installed.
        make("install", f"PREFIX={prefix}", "MANIFEST=", "LDCONFIG=true")
