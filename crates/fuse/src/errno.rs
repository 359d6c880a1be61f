//! Errors as the kernel wants them: one errno value, and one value beside them
//! that says "ask again in a thread that may sleep".

use std::fmt;

/// `Result` of a file system operation.
pub type Result<T> = std::result::Result<T, Errno>;

/// An errno value, or [`Errno::WOULD_BLOCK`].
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(i32);

macro_rules! values {
    ($($name:ident = $value:literal, $text:literal;)*) => {
        impl Errno {
            $(#[doc = $text] pub const $name: Errno = Errno($value);)*
        }
        impl fmt::Debug for Errno {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match *self {
                    Errno::WOULD_BLOCK => f.write_str("WOULD_BLOCK"),
                    $(Errno::$name => f.write_str(stringify!($name)),)*
                    Errno(other) => write!(f, "Errno({other})"),
                }
            }
        }
    };
}

values! {
    EPERM = 1, "Operation not permitted.";
    ENOENT = 2, "No such file.";
    EINTR = 4, "Interrupted.";
    EIO = 5, "Input/output error.";
    ENXIO = 6, "No such address: `SEEK_DATA` found none.";
    EBADF = 9, "Not an open handle.";
    EAGAIN = 11, "A lock is held by another.";
    ENOMEM = 12, "No memory.";
    EACCES = 13, "Permission denied.";
    EBUSY = 16, "Busy.";
    EEXIST = 17, "It exists.";
    EXDEV = 18, "Across file systems.";
    ENODEV = 19, "The connection is gone.";
    ENOTDIR = 20, "Not a directory.";
    EISDIR = 21, "Is a directory.";
    EINVAL = 22, "Invalid argument.";
    ENOTTY = 25, "Not an ioctl of this file.";
    EFBIG = 27, "File too large.";
    ENOSPC = 28, "No space left.";
    EROFS = 30, "Read-only file system.";
    EMLINK = 31, "Too many links.";
    ERANGE = 34, "The buffer is too small.";
    EDEADLK = 35, "Would deadlock.";
    ENAMETOOLONG = 36, "Name too long.";
    ENOLCK = 37, "No locks available.";
    ENOSYS = 38, "Not implemented; the kernel stops asking.";
    ENOTEMPTY = 39, "Directory not empty.";
    ELOOP = 40, "Too many symbolic links.";
    ENODATA = 61, "No such extended attribute.";
    EPROTO = 71, "Protocol error.";
    EOVERFLOW = 75, "Value too large.";
    EOPNOTSUPP = 95, "Not supported.";
    ENOTCONN = 107, "Transport endpoint is not connected.";
    ESTALE = 116, "Stale file handle.";
    EDQUOT = 122, "Quota exceeded.";
}

impl Errno {
    /// The answer is not in memory. Only an operation called with
    /// [`BlockingMode::NonBlocking`](crate::BlockingMode::NonBlocking) says this; it is then
    /// called again by a worker.
    pub const WOULD_BLOCK: Errno = Errno(0);

    /// From a raw value; what is no errno becomes `EIO`.
    pub fn from_raw(value: i32) -> Errno {
        if (1..4096).contains(&value) { Errno(value) } else { Errno::EIO }
    }

    /// The raw, positive value; [`Errno::WOULD_BLOCK`] is `EAGAIN`.
    pub fn raw(self) -> i32 {
        if self == Errno::WOULD_BLOCK { Errno::EAGAIN.0 } else { self.0 }
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        std::io::Error::from_raw_os_error(self.raw()).fmt(f)
    }
}

impl std::error::Error for Errno {}

impl From<base::ErrorKind> for Errno {
    fn from(kind: base::ErrorKind) -> Errno {
        match kind {
            base::ErrorKind::WouldBlock => Errno::WOULD_BLOCK,
            kind => Errno::from_raw(kind.errno()),
        }
    }
}

impl From<base::Error> for Errno {
    fn from(error: base::Error) -> Errno {
        error.kind().into()
    }
}

impl From<&base::Error> for Errno {
    fn from(error: &base::Error) -> Errno {
        error.kind().into()
    }
}

impl From<rustix::io::Errno> for Errno {
    fn from(errno: rustix::io::Errno) -> Errno {
        Errno::from_raw(errno.raw_os_error())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn would_block_is_not_eagain() {
        let e: Errno = base::Error::new(base::ErrorKind::WouldBlock, "x").into();
        assert_eq!(e, Errno::WOULD_BLOCK);
        assert_ne!(e, Errno::EAGAIN);
        assert_eq!(e.raw(), 11);
        assert_eq!(Errno::from(base::ErrorKind::Quota), Errno::EDQUOT);
        assert_eq!(Errno::from_raw(0), Errno::EIO);
        assert_eq!(Errno::from_raw(-5), Errno::EIO);
    }
}
