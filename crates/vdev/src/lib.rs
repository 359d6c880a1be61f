//! The vdev tree: mirror, raidz, draid, indirect, spare and replacing over devices.
