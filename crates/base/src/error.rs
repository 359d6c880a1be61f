//! The error type of the workspace. An error has a kind to match on, a location, a
//! message that tells the user what to do, and a cause.

use std::fmt;

use crate::units::{Dva, Guid, ObjectId};

/// `Result` with Cenote's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, for control flow. Match on the kind; messages are for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// No such pool, dataset, object, file or attribute.
    NotFound,
    /// It already exists.
    Exists,
    /// The request is invalid (bad argument, bad name, bad option).
    Invalid,
    /// Bytes from a device violate the format.
    Corrupt,
    /// A block failed its checksum on every copy.
    Checksum,
    /// A device failed.
    Io,
    /// The pool or the request needs a feature that this version lacks.
    Unsupported,
    /// In use by another owner.
    Busy,
    /// Not allowed.
    Permission,
    /// Not allowed regardless of the permission bits: file flags, missing privilege.
    NotPermitted,
    /// Crosses a boundary of file systems or projects.
    CrossDevice,
    /// A file already has the maximum number of links.
    TooManyLinks,
    /// A file would become too large.
    TooLarge,
    /// No such extended attribute.
    NoAttribute,
    /// A name is not UTF-8 where it must be.
    NotUnicode,
    /// No free space.
    NoSpace,
    /// A quota is exhausted.
    Quota,
    /// The pool or dataset is read-only.
    ReadOnly,
    /// Encrypted, and its key is not loaded.
    Locked,
    /// The call would have to wait for a device (only from calls that answer from
    /// memory).
    WouldBlock,
    /// The caller disappeared or asked to stop.
    Interrupted,
    /// A limit of `base::limits` would be exceeded.
    Limit,
    /// Not a directory.
    NotDir,
    /// Is a directory.
    IsDir,
    /// A directory that must be empty is not.
    NotEmpty,
    /// A name is too long.
    NameTooLong,
    /// The caller's buffer is too small.
    Range,
    /// Devices of the pool are missing, so a block or the pool cannot be read. Waiting for
    /// them can help.
    DevicesMissing,
    /// A position at or behind the end of a file, or without data or hole behind it (`ENXIO`
    /// of `lseek`).
    PastEnd,
    /// An internal assumption of Cenote failed; please report it.
    Bug,
}

impl ErrorKind {
    /// The nearest errno, for FUSE and for callers that expect one.
    pub fn errno(self) -> i32 {
        match self {
            ErrorKind::NotPermitted => 1,
            ErrorKind::NotFound => 2,
            ErrorKind::Interrupted => 4,
            ErrorKind::Io | ErrorKind::Corrupt | ErrorKind::Checksum => 5,
            ErrorKind::DevicesMissing | ErrorKind::PastEnd => 6,
            ErrorKind::WouldBlock => 11,
            ErrorKind::Limit => 12,
            ErrorKind::Permission | ErrorKind::Locked => 13,
            ErrorKind::Busy => 16,
            ErrorKind::Exists => 17,
            ErrorKind::CrossDevice => 18,
            ErrorKind::NotDir => 20,
            ErrorKind::IsDir => 21,
            ErrorKind::Invalid => 22,
            ErrorKind::TooLarge => 27,
            ErrorKind::NoSpace => 28,
            ErrorKind::ReadOnly => 30,
            ErrorKind::TooManyLinks => 31,
            ErrorKind::Range => 34,
            ErrorKind::NameTooLong => 36,
            ErrorKind::NotEmpty => 39,
            ErrorKind::NoAttribute => 61,
            ErrorKind::NotUnicode => 84,
            ErrorKind::Unsupported => 95,
            ErrorKind::Quota => 122,
            ErrorKind::Bug => 5,
        }
    }
}

/// Where the error happened; the layers that the error passes through fill it in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ErrorLocation {
    /// Pool name.
    pub pool: Option<String>,
    /// Leaf or interior vdev.
    pub vdev: Option<Guid>,
    /// Device or file path.
    pub path: Option<String>,
    /// Dataset name.
    pub dataset: Option<String>,
    /// Object id.
    pub object: Option<ObjectId>,
    /// Block level and id within the object.
    pub block: Option<(u8, u64)>,
    /// Address of the block.
    pub dva: Option<Dva>,
}

struct ErrorBody {
    kind: ErrorKind,
    message: String,
    location: ErrorLocation,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// Cenote's error. One pointer wide.
pub struct Error(Box<ErrorBody>);

macro_rules! constructors {
    ($($(#[$doc:meta])* $name:ident => $kind:ident),* $(,)?) => {
        $($(#[$doc])*
        pub fn $name(message: impl Into<String>) -> Error {
            Error::new(ErrorKind::$kind, message)
        })*
    };
}

impl Error {
    /// An error of `kind` with a message for people.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Error {
        Error(Box::new(ErrorBody {
            kind,
            message: message.into(),
            location: ErrorLocation::default(),
            source: None,
        }))
    }

    constructors! {
        /// Bytes from a device violate the format.
        corrupt => Corrupt,
        /// No such thing.
        not_found => NotFound,
        /// The request is invalid.
        invalid => Invalid,
        /// Cenote cannot do this (yet).
        unsupported => Unsupported,
        /// A block failed its checksum on every copy.
        checksum => Checksum,
        /// A limit would be exceeded.
        limit => Limit,
        /// An internal assumption of Cenote failed.
        bug => Bug,
        /// In use by another owner.
        busy => Busy,
        /// Not allowed.
        permission => Permission,
    }

    /// An I/O error from the operating system, with the action that failed.
    pub fn io(doing: impl Into<String>, source: std::io::Error) -> Error {
        let kind = match source.kind() {
            std::io::ErrorKind::NotFound => ErrorKind::NotFound,
            std::io::ErrorKind::PermissionDenied => ErrorKind::Permission,
            std::io::ErrorKind::StorageFull => ErrorKind::NoSpace,
            std::io::ErrorKind::ResourceBusy => ErrorKind::Busy,
            std::io::ErrorKind::Interrupted => ErrorKind::Interrupted,
            _ => ErrorKind::Io,
        };
        Error::new(kind, doing).caused_by(source)
    }

    /// The kind, for control flow.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The message alone, without location and cause.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// Where the error happened, as far as known.
    pub fn location(&self) -> &ErrorLocation {
        &self.0.location
    }

    /// Attaches the cause.
    #[must_use]
    pub fn caused_by(mut self, source: impl std::error::Error + Send + Sync + 'static) -> Error {
        self.0.source = Some(Box::new(source));
        self
    }

    /// Changes the kind; keeps message, location and cause.
    #[must_use]
    pub fn with_kind(mut self, kind: ErrorKind) -> Error {
        self.0.kind = kind;
        self
    }

    /// Names the pool, unless an inner layer did.
    #[must_use]
    pub fn in_pool(mut self, pool: &str) -> Error {
        self.0.location.pool.get_or_insert_with(|| pool.to_owned());
        self
    }

    /// Names the dataset, unless an inner layer did.
    #[must_use]
    pub fn in_dataset(mut self, dataset: &str) -> Error {
        self.0.location.dataset.get_or_insert_with(|| dataset.to_owned());
        self
    }

    /// Names the object, unless an inner layer did.
    #[must_use]
    pub fn in_object(mut self, object: ObjectId) -> Error {
        self.0.location.object.get_or_insert(object);
        self
    }

    /// Names the block within its object, unless an inner layer did.
    #[must_use]
    pub fn at_block(mut self, level: u8, blkid: u64) -> Error {
        self.0.location.block.get_or_insert((level, blkid));
        self
    }

    /// Names the address, unless an inner layer did.
    #[must_use]
    pub fn at_dva(mut self, dva: Dva) -> Error {
        self.0.location.dva.get_or_insert(dva);
        self
    }

    /// Names the vdev, unless an inner layer did.
    #[must_use]
    pub fn on_vdev(mut self, guid: Guid) -> Error {
        self.0.location.vdev.get_or_insert(guid);
        self
    }

    /// Names the device or file, unless an inner layer did.
    #[must_use]
    pub fn on_path(mut self, path: impl Into<String>) -> Error {
        self.0.location.path.get_or_insert_with(|| path.into());
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let location = &self.0.location;
        f.write_str(&self.0.message)?;
        let mut sep = " (";
        let mut item = |f: &mut fmt::Formatter<'_>, args: fmt::Arguments<'_>| {
            f.write_str(std::mem::replace(&mut sep, ", "))?;
            f.write_fmt(args)
        };
        if let Some(v) = &location.pool {
            item(f, format_args!("pool {v}"))?;
        }
        if let Some(v) = &location.dataset {
            item(f, format_args!("dataset {v}"))?;
        }
        if let Some(v) = location.object {
            item(f, format_args!("object {v}"))?;
        }
        if let Some((level, blkid)) = location.block {
            item(f, format_args!("level {level} block {blkid}"))?;
        }
        if let Some(v) = location.dva {
            item(f, format_args!("address {v}"))?;
        }
        if let Some(v) = location.vdev {
            item(f, format_args!("vdev {v}"))?;
        }
        if let Some(v) = &location.path {
            item(f, format_args!("{v}"))?;
        }
        if sep == ", " {
            f.write_str(")")?;
        }
        if let Some(source) = &self.0.source {
            write!(f, ": {source}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {self}", self.0.kind)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_deref().map(|e| e as _)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_shows_kind_location_and_cause_once() {
        let e = Error::corrupt("ZAP leaf chain is a cycle")
            .in_object(ObjectId(32))
            .in_object(ObjectId(33))
            .in_pool("tank")
            .caused_by(std::io::Error::other("inner"));
        assert_eq!(e.kind(), ErrorKind::Corrupt);
        assert_eq!(e.to_string(), "ZAP leaf chain is a cycle (pool tank, object 32): inner");
        assert_eq!(Error::invalid("bad name").to_string(), "bad name");
        assert_eq!(std::mem::size_of::<Error>(), 8);
    }
}
