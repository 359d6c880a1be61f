//! Requests: from bytes to a checked, typed operation that borrows from them.
//!
//! # Invariants
//! * Names contain no NUL and no `/`, and are neither empty nor longer than the
//!   protocol allows; link targets and attribute names contain no NUL.
//! * Counts inside a message were compared with the bytes that are there.
//!
//! The kernel is trusted to be honest, yet nothing here relies on it: a message
//! that does not parse is answered with `EINVAL` or dropped.

use super::Wire;
use super::structs::*;

/// What was agreed in INIT, as far as parsing depends on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Proto {
    /// `fuse_setxattr_in` has its long form.
    pub(crate) setxattr_ext: bool,
}

/// Why a message is no request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Malformed {
    /// It has no header, so there is no request to answer.
    Header,
    /// The body does not fit its opcode.
    Body(InHeader),
    /// An opcode that this crate does not know.
    Unknown(InHeader),
}

macro_rules! opcodes {
    ($($name:ident = $code:literal),* $(,)?) => {
        /// The operations of the protocol, named as in `linux/fuse.h`.
        #[allow(missing_docs, reason = "each name is the operation's")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Opcode { $($name = $code),* }
        impl Opcode {
            /// Every opcode.
            pub const ALL: &'static [Opcode] = &[$(Opcode::$name),*];
            pub(crate) fn from_wire(code: u32) -> Option<Opcode> {
                match code { $($code => Some(Opcode::$name),)* _ => None }
            }
        }
    };
}

opcodes! {
    Lookup = 1, Forget = 2, Getattr = 3, Setattr = 4, Readlink = 5, Symlink = 6, Mknod = 8,
    Mkdir = 9, Unlink = 10, Rmdir = 11, Rename = 12, Link = 13, Open = 14, Read = 15, Write = 16,
    Statfs = 17, Release = 18, Fsync = 20, Setxattr = 21, Getxattr = 22, Listxattr = 23,
    Removexattr = 24, Flush = 25, Init = 26, Opendir = 27, Readdir = 28, Releasedir = 29,
    Fsyncdir = 30, Getlk = 31, Setlk = 32, Setlkw = 33, Access = 34, Create = 35, Interrupt = 36,
    Bmap = 37, Destroy = 38, Ioctl = 39, Poll = 40, NotifyReply = 41, BatchForget = 42,
    Fallocate = 43, Readdirplus = 44, Rename2 = 45, Lseek = 46, CopyFileRange = 47, Syncfs = 50,
    Tmpfile = 51, Statx = 52, CopyFileRange64 = 53,
}

/// A parsed request body. It is copied, not parsed again, when a request is tried a second
/// time or handed to another thread.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RequestBody<'a> {
    Lookup(&'a [u8]),
    Forget(ForgetIn),
    BatchForget(Forgets<'a>),
    Getattr(GetattrIn),
    Setattr(SetattrIn),
    Readlink,
    Symlink {
        name: &'a [u8],
        target: &'a [u8],
    },
    Mknod(MknodIn, &'a [u8]),
    Mkdir(MkdirIn, &'a [u8]),
    Unlink(&'a [u8]),
    Rmdir(&'a [u8]),
    Rename {
        arg: Rename2In,
        from: &'a [u8],
        to: &'a [u8],
    },
    Link(LinkIn, &'a [u8]),
    Open(OpenIn),
    Opendir(OpenIn),
    Read(ReadIn),
    /// The data follow the argument; see [`write_data`].
    Write(WriteIn),
    Statfs,
    Release(ReleaseIn),
    Releasedir(ReleaseIn),
    Fsync(FsyncIn),
    Fsyncdir(FsyncIn),
    Setxattr {
        arg: SetxattrIn,
        name: &'a [u8],
        value: &'a [u8],
    },
    Getxattr(GetxattrIn, &'a [u8]),
    Listxattr(GetxattrIn),
    Removexattr(&'a [u8]),
    Flush(FlushIn),
    Init(InitIn),
    Readdir(ReadIn),
    Readdirplus(ReadIn),
    Getlk(LkIn),
    Setlk(LkIn),
    Setlkw(LkIn),
    Access(AccessIn),
    Create(CreateIn, &'a [u8]),
    Tmpfile(CreateIn),
    Interrupt(InterruptIn),
    Bmap(BmapIn),
    Destroy,
    Ioctl(IoctlIn, &'a [u8]),
    Poll(PollIn),
    NotifyReply,
    Fallocate(FallocateIn),
    Lseek(LseekIn),
    CopyFileRange(CopyFileRangeIn),
    CopyFileRange64(CopyFileRangeIn),
    Syncfs,
    Statx(StatxIn),
}

/// The list of a BATCH_FORGET; the message has all of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Forgets<'a>(&'a [u8]);

impl Forgets<'_> {
    pub(crate) fn iter(self) -> impl Iterator<Item = ForgetOne> {
        let mut rest = self.0;
        std::iter::from_fn(move || ForgetOne::take(&mut rest))
    }
}

/// Longest name accepted, in bytes (the kernel's own limit is 1024 since 6.16).
const NAME_MAX: usize = 1024;

fn c_string<'a>(from: &mut &'a [u8]) -> Option<&'a [u8]> {
    let end = from.iter().position(|&b| b == 0)?;
    let (head, rest) = from.split_at_checked(end)?;
    *from = rest.get(1..)?;
    Some(head)
}

fn name<'a>(from: &mut &'a [u8]) -> Option<&'a [u8]> {
    let name = c_string(from)?;
    let good = !name.is_empty() && name.len() <= NAME_MAX && !name.contains(&b'/');
    good.then_some(name)
}

/// Parses one message as the kernel delivers it.
pub(crate) fn parse(
    msg: &[u8],
    proto: Proto,
) -> Result<(InHeader, Opcode, RequestBody<'_>), Malformed> {
    let mut body = msg;
    let header = InHeader::take(&mut body).ok_or(Malformed::Header)?;
    if usize::try_from(header.len) != Ok(msg.len()) {
        return Err(Malformed::Header);
    }
    let opcode = Opcode::from_wire(header.opcode).ok_or(Malformed::Unknown(header))?;
    // Extensions, which this crate never requests, are at the end of the message.
    let ext = usize::from(header.total_extlen) * 8;
    let body = match body.len().checked_sub(ext) {
        Some(keep) => body.get(..keep).unwrap_or_default(),
        None => return Err(Malformed::Body(header)),
    };
    let op = operation(opcode, body, proto).ok_or(Malformed::Body(header))?;
    Ok((header, opcode, op))
}

/// Where the data of a WRITE lie in its message; `None` if they are cut short.
pub(crate) fn write_data(msg_len: usize, arg: &WriteIn) -> Option<std::ops::Range<usize>> {
    let start = InHeader::SIZE + WriteIn::SIZE;
    let end = start.checked_add(usize::try_from(arg.size).ok()?)?;
    (end <= msg_len).then_some(start..end)
}

fn operation<'a>(opcode: Opcode, mut body: &'a [u8], proto: Proto) -> Option<RequestBody<'a>> {
    let b = &mut body;
    Some(match opcode {
        Opcode::Lookup => RequestBody::Lookup(name(b)?),
        Opcode::Forget => RequestBody::Forget(ForgetIn::take(b)?),
        Opcode::BatchForget => {
            let count = usize::try_from(BatchForgetIn::take(b)?.count).ok()?;
            RequestBody::BatchForget(Forgets(b.get(..count.checked_mul(ForgetOne::SIZE)?)?))
        }
        Opcode::Getattr => RequestBody::Getattr(GetattrIn::take(b)?),
        Opcode::Setattr => RequestBody::Setattr(SetattrIn::take(b)?),
        Opcode::Readlink => RequestBody::Readlink,
        Opcode::Symlink => RequestBody::Symlink { name: name(b)?, target: c_string(b)? },
        Opcode::Mknod => RequestBody::Mknod(MknodIn::take(b)?, name(b)?),
        Opcode::Mkdir => RequestBody::Mkdir(MkdirIn::take(b)?, name(b)?),
        Opcode::Unlink => RequestBody::Unlink(name(b)?),
        Opcode::Rmdir => RequestBody::Rmdir(name(b)?),
        Opcode::Rename => {
            let newdir = RenameIn::take(b)?.newdir;
            let arg = Rename2In { newdir, ..Default::default() };
            RequestBody::Rename { arg, from: name(b)?, to: name(b)? }
        }
        Opcode::Rename2 => {
            RequestBody::Rename { arg: Rename2In::take(b)?, from: name(b)?, to: name(b)? }
        }
        Opcode::Link => RequestBody::Link(LinkIn::take(b)?, name(b)?),
        Opcode::Open => RequestBody::Open(OpenIn::take(b)?),
        Opcode::Opendir => RequestBody::Opendir(OpenIn::take(b)?),
        Opcode::Read => RequestBody::Read(ReadIn::take(b)?),
        Opcode::Write => RequestBody::Write(WriteIn::take(b)?),
        Opcode::Statfs => RequestBody::Statfs,
        Opcode::Release => RequestBody::Release(ReleaseIn::take(b)?),
        Opcode::Releasedir => RequestBody::Releasedir(ReleaseIn::take(b)?),
        Opcode::Fsync => RequestBody::Fsync(FsyncIn::take(b)?),
        Opcode::Fsyncdir => RequestBody::Fsyncdir(FsyncIn::take(b)?),
        Opcode::Setxattr => setxattr(b, proto)?,
        Opcode::Getxattr => RequestBody::Getxattr(GetxattrIn::take(b)?, c_string(b)?),
        Opcode::Listxattr => RequestBody::Listxattr(GetxattrIn::take(b)?),
        Opcode::Removexattr => RequestBody::Removexattr(c_string(b)?),
        Opcode::Flush => RequestBody::Flush(FlushIn::take(b)?),
        Opcode::Init => RequestBody::Init(init(b)?),
        Opcode::Readdir => RequestBody::Readdir(ReadIn::take(b)?),
        Opcode::Readdirplus => RequestBody::Readdirplus(ReadIn::take(b)?),
        Opcode::Getlk => RequestBody::Getlk(LkIn::take(b)?),
        Opcode::Setlk => RequestBody::Setlk(LkIn::take(b)?),
        Opcode::Setlkw => RequestBody::Setlkw(LkIn::take(b)?),
        Opcode::Access => RequestBody::Access(AccessIn::take(b)?),
        Opcode::Create => RequestBody::Create(CreateIn::take(b)?, name(b)?),
        // A name follows ("/"); it means nothing.
        Opcode::Tmpfile => RequestBody::Tmpfile(CreateIn::take(b)?),
        Opcode::Interrupt => RequestBody::Interrupt(InterruptIn::take(b)?),
        Opcode::Bmap => RequestBody::Bmap(BmapIn::take(b)?),
        Opcode::Destroy => RequestBody::Destroy,
        Opcode::Ioctl => {
            let arg = IoctlIn::take(b)?;
            RequestBody::Ioctl(arg, b.get(..usize::try_from(arg.in_size).ok()?)?)
        }
        Opcode::Poll => RequestBody::Poll(PollIn::take(b)?),
        Opcode::NotifyReply => RequestBody::NotifyReply,
        Opcode::Fallocate => RequestBody::Fallocate(FallocateIn::take(b)?),
        Opcode::Lseek => RequestBody::Lseek(LseekIn::take(b)?),
        Opcode::CopyFileRange => RequestBody::CopyFileRange(CopyFileRangeIn::take(b)?),
        Opcode::CopyFileRange64 => RequestBody::CopyFileRange64(CopyFileRangeIn::take(b)?),
        Opcode::Syncfs => RequestBody::Syncfs,
        Opcode::Statx => RequestBody::Statx(StatxIn::take(b)?),
    })
}

fn setxattr<'a>(b: &mut &'a [u8], proto: Proto) -> Option<RequestBody<'a>> {
    let arg = if proto.setxattr_ext {
        SetxattrIn::take(b)?
    } else {
        let short = SetxattrCompatIn::take(b)?;
        SetxattrIn { size: short.size, flags: short.flags, ..Default::default() }
    };
    let name = c_string(b)?;
    let value = b.get(..usize::try_from(arg.size).ok()?)?;
    Some(RequestBody::Setxattr { arg, name, value })
}

fn init(b: &mut &[u8]) -> Option<InitIn> {
    if b.len() >= InitIn::SIZE {
        return InitIn::take(b);
    }
    let short = InitCompatIn::take(b)?;
    Some(InitIn {
        major: short.major,
        minor: short.minor,
        max_readahead: short.max_readahead,
        flags: short.flags,
        ..Default::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn message(opcode: u32, body: &[u8], extlen: u16) -> Vec<u8> {
        let len = (InHeader::SIZE + body.len()) as u32;
        let header = InHeader {
            len,
            opcode,
            unique: 8,
            nodeid: 1,
            total_extlen: extlen,
            ..Default::default()
        };
        let mut out = Vec::new();
        header.put(&mut out);
        out.extend_from_slice(body);
        out
    }

    #[test]
    fn names_are_checked() {
        let proto = Proto::default();
        for (body, good) in [
            (&b"abc\0"[..], true),
            (b"abc", false),
            (b"\0", false),
            (b"a/b\0", false),
            (&[b'x'; 2000], false),
        ] {
            assert_eq!(parse(&message(1, body, 0), proto).is_ok(), good, "{body:?}");
        }
    }

    #[test]
    fn both_forms_of_setxattr() {
        let mut short = Vec::new();
        SetxattrCompatIn { size: 3, flags: 1 }.put(&mut short);
        short.extend_from_slice(b"user.a\0xyz");
        let mut long = Vec::new();
        SetxattrIn { size: 3, flags: 1, setxattr_flags: 1, padding: 0 }.put(&mut long);
        long.extend_from_slice(b"user.a\0xyz");
        for (body, ext) in [(short, false), (long, true)] {
            let msg = message(21, &body, 0);
            let (_, _, op) = parse(&msg, Proto { setxattr_ext: ext }).unwrap();
            let RequestBody::Setxattr { arg, name, value } = op else { panic!("not setxattr") };
            assert_eq!((arg.flags, name, value), (1, &b"user.a"[..], &b"xyz"[..]));
        }
    }

    #[test]
    fn extensions_are_cut_off() {
        let msg = message(9, &[&[0; 8][..], b"dir\0", &[7; 16]].concat(), 2);
        let (_, opcode, op) = parse(&msg, Proto::default()).unwrap();
        assert_eq!(opcode, Opcode::Mkdir);
        assert!(matches!(op, RequestBody::Mkdir(_, b"dir")));
        let msg = message(9, &[0; 8], 2);
        assert!(matches!(parse(&msg, Proto::default()), Err(Malformed::Body(_))));
    }

    #[test]
    fn write_data_must_be_there() {
        let arg = WriteIn { size: 10, ..Default::default() };
        assert_eq!(write_data(90, &arg), Some(80..90));
        assert_eq!(write_data(89, &arg), None);
        assert_eq!(write_data(80, &WriteIn { size: u32::MAX, ..arg }), None);
    }

    #[test]
    fn a_batch_longer_than_its_message_is_refused() {
        let mut body = Vec::new();
        BatchForgetIn { count: 2, dummy: 0 }.put(&mut body);
        ForgetOne { nodeid: 5, nlookup: 6 }.put(&mut body);
        assert!(parse(&message(42, &body, 0), Proto::default()).is_err());
        ForgetOne { nodeid: 7, nlookup: 8 }.put(&mut body);
        let msg = message(42, &body, 0);
        let (_, _, RequestBody::BatchForget(list)) = parse(&msg, Proto::default()).unwrap() else {
            panic!("not a batch");
        };
        let ids: Vec<_> = list.iter().map(|f| (f.nodeid, f.nlookup)).collect();
        assert_eq!(ids, [(5, 6), (7, 8)]);
    }

    proptest! {
        /// Random bytes: an answer, never a panic.
        #[test]
        fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), ext in any::<bool>()) {
            let _ = parse(&bytes, Proto { setxattr_ext: ext });
        }

        /// A valid header before random bytes reaches every body parser; what
        /// parses lies inside the message.
        #[test]
        fn random_bodies_never_panic(
            opcode in 0u32..60,
            body in prop::collection::vec(prop_oneof![Just(0u8), Just(b'a'), any::<u8>()], 0..200),
            extlen in prop_oneof![Just(0u16), 0u16..40],
            ext in any::<bool>(),
        ) {
            let msg = message(opcode, &body, extlen);
            match parse(&msg, Proto { setxattr_ext: ext }) {
                Ok((header, code, op)) => {
                    prop_assert_eq!(header.opcode, code as u32);
                    if let RequestBody::Lookup(name) | RequestBody::Unlink(name) = op {
                        prop_assert!(msg.windows(name.len()).any(|w| w == name));
                        prop_assert!(!name.contains(&0) && !name.contains(&b'/'));
                    }
                }
                Err(e) => prop_assert!(e != Malformed::Header),
            }
        }
    }
}
