//! Performing requests.

use base::{Buf, ErrorKind};
use cenote::{Io, Volume};

use crate::handshake::Transmission;
use crate::outbox::ReplyPiece;
use crate::wire::{
    BASE_ALLOCATION_ID, EXTENDED_REPLY_MAGIC, PAYLOAD_MAX, RequestHeader, SIMPLE_REPLY_MAGIC,
    STATE_HOLE_ZERO, STRUCTURED_REPLY_MAGIC, chunk, cmd, errno, flag,
};

/// Extents in one reply.
const EXTENTS_MAX: usize = 2048;
/// Bytes that are written at a time where zeros must take space.
const ZEROES: usize = 1 << 20;

/// Why a request failed: the protocol's number, and a text.
type RequestFailure = (u32, String);

fn failed(e: &base::Error) -> RequestFailure {
    let number = match e.kind() {
        ErrorKind::NoSpace | ErrorKind::Quota => errno::ENOSPC,
        ErrorKind::ReadOnly | ErrorKind::Permission | ErrorKind::NotPermitted => errno::EPERM,
        ErrorKind::Invalid => errno::EINVAL,
        _ => errno::EIO,
    };
    (number, e.to_string())
}

fn fail<T>(number: u32, why: &str) -> Result<T, RequestFailure> {
    Err((number, why.to_owned()))
}

/// What a request gives besides success.
enum Answer {
    Nothing,
    Data(Vec<Buf>),
    /// Runs of bytes, and their state.
    Extents(Vec<(u64, u32)>),
}

/// Bytes that a request is charged for while it is performed.
pub(crate) fn charge(header: &RequestHeader, payload: Option<&Buf>) -> usize {
    match header.command {
        cmd::READ => header.length.min(u64::from(PAYLOAD_MAX)) as usize,
        _ => payload.map_or(0, |p| p.len()),
    }
}

/// Performs a request and returns the whole reply.
pub(crate) fn perform(
    of: &Transmission,
    header: &RequestHeader,
    payload: Option<&Buf>,
) -> Vec<ReplyPiece> {
    let answer = answer(of, header, payload);
    match (of.structured, answer) {
        (false, Ok(Answer::Data(data))) => {
            let mut out = vec![simple(header, 0)];
            out.extend(data.into_iter().map(ReplyPiece::Data));
            out
        }
        (false, Ok(_)) => vec![simple(header, 0)],
        (false, Err((number, _))) => vec![simple(header, number)],
        (true, Ok(Answer::Nothing)) => vec![ReplyPiece::Head(reply(of, header, chunk::NONE, 0))],
        (true, Ok(Answer::Data(data))) => {
            let len = data.iter().map(|b| b.len() as u64).sum::<u64>();
            let mut head = reply(of, header, chunk::OFFSET_DATA, 8 + len);
            head.extend(header.offset.to_be_bytes());
            let mut out = vec![ReplyPiece::Head(head)];
            out.extend(data.into_iter().map(ReplyPiece::Data));
            out
        }
        (true, Ok(Answer::Extents(list))) => vec![ReplyPiece::Head(extents(of, header, &list))],
        (true, Err((number, why))) => {
            let text = &why.as_bytes()[..why.floor_char_boundary(1000)];
            let mut out = reply(of, header, chunk::ERROR, 6 + text.len() as u64);
            out.extend(number.to_be_bytes());
            out.extend((text.len() as u16).to_be_bytes());
            out.extend(text);
            vec![ReplyPiece::Head(out)]
        }
    }
}

fn simple(header: &RequestHeader, number: u32) -> ReplyPiece {
    let mut out = SIMPLE_REPLY_MAGIC.to_be_bytes().to_vec();
    out.extend(number.to_be_bytes());
    out.extend(header.cookie.to_be_bytes());
    ReplyPiece::Head(out)
}

/// The head of a reply of one chunk with `len` bytes.
fn reply(of: &Transmission, header: &RequestHeader, kind: u16, len: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(64);
    let magic = if of.extended { EXTENDED_REPLY_MAGIC } else { STRUCTURED_REPLY_MAGIC };
    out.extend(magic.to_be_bytes());
    out.extend(chunk::DONE.to_be_bytes());
    out.extend(kind.to_be_bytes());
    out.extend(header.cookie.to_be_bytes());
    if of.extended {
        out.extend(header.offset.to_be_bytes());
        out.extend(len.to_be_bytes());
    } else {
        out.extend((len as u32).to_be_bytes());
    }
    out
}

fn extents(of: &Transmission, header: &RequestHeader, list: &[(u64, u32)]) -> Vec<u8> {
    let count = list.len() as u64;
    let mut out;
    if of.extended {
        out = reply(of, header, chunk::BLOCK_STATUS_EXT, 8 + 16 * count);
        out.extend(BASE_ALLOCATION_ID.to_be_bytes());
        out.extend((count as u32).to_be_bytes());
        for (len, state) in list {
            out.extend(len.to_be_bytes());
            out.extend(u64::from(*state).to_be_bytes());
        }
    } else {
        out = reply(of, header, chunk::BLOCK_STATUS, 4 + 8 * count);
        out.extend(BASE_ALLOCATION_ID.to_be_bytes());
        for (len, state) in list {
            out.extend((*len as u32).to_be_bytes());
            out.extend(state.to_be_bytes());
        }
    }
    out
}

/// The flags that a command knows.
fn known_flags(command: u16, extended: bool) -> u16 {
    let own = match command {
        cmd::READ => flag::DF,
        cmd::WRITE if extended => flag::FUA | flag::PAYLOAD_LEN,
        cmd::WRITE_ZEROES => flag::FUA | flag::NO_HOLE | flag::FAST_ZERO,
        cmd::BLOCK_STATUS => flag::REQ_ONE,
        _ => 0,
    };
    // Every command may have FUA; it says nothing for those that write nothing.
    own | flag::FUA
}

fn answer(
    of: &Transmission,
    header: &RequestHeader,
    payload: Option<&Buf>,
) -> Result<Answer, RequestFailure> {
    let RequestHeader { flags, command, offset, length, .. } = *header;
    let volume = &*of.volume;
    if flags & !known_flags(command, of.extended) != 0 {
        return fail(errno::EINVAL, "unknown flag");
    }
    let size = volume.size();
    let inside = offset.checked_add(length).is_some_and(|end| end <= size);
    let writes = matches!(command, cmd::WRITE | cmd::TRIM | cmd::WRITE_ZEROES);
    if writes && !volume.is_writable() {
        return fail(errno::EPERM, "the export is read-only");
    }
    if !inside && command != cmd::FLUSH {
        let number = if writes { errno::ENOSPC } else { errno::EINVAL };
        return fail(number, "past the end of the export");
    }
    let done = match command {
        cmd::READ => return read(of, offset, length),
        cmd::WRITE => match payload {
            Some(data) => volume.write(offset, data),
            None if length == 0 => Ok(()),
            None => return fail(errno::EINVAL, "a write without data"),
        },
        cmd::FLUSH if offset != 0 || length != 0 => return fail(errno::EINVAL, "not zero"),
        cmd::FLUSH => volume.flush(),
        cmd::TRIM => volume.discard(offset, length),
        cmd::CACHE => volume.prefetch(offset, length),
        cmd::WRITE_ZEROES if flags & flag::NO_HOLE == 0 => volume.zero(offset, length),
        cmd::WRITE_ZEROES if flags & flag::FAST_ZERO != 0 => {
            return fail(errno::ENOTSUP, "zeros that take space are written");
        }
        cmd::WRITE_ZEROES => write_zeroes(volume, offset, length),
        cmd::BLOCK_STATUS if !of.allocation || length == 0 => {
            return fail(errno::EINVAL, "no metadata context was chosen, or nothing is asked");
        }
        cmd::BLOCK_STATUS => {
            let most = if flags & flag::REQ_ONE != 0 { 1 } else { EXTENTS_MAX };
            let list = status(volume, offset, length, most, of.extended);
            return list.map(Answer::Extents).map_err(|e| failed(&e));
        }
        _ => return fail(errno::EINVAL, "unknown command"),
    };
    let fua = flags & flag::FUA != 0 && writes;
    let done = if fua { done.and_then(|()| volume.flush()) } else { done };
    done.map(|()| Answer::Nothing).map_err(|e| failed(&e))
}

fn read(of: &Transmission, offset: u64, length: u64) -> Result<Answer, RequestFailure> {
    if length > u64::from(PAYLOAD_MAX) {
        return fail(errno::EOVERFLOW, "a read of more than 32 MiB");
    }
    if length == 0 {
        return Ok(Answer::Nothing);
    }
    let data = of.volume.read(offset, length as usize, Io::WAIT).map_err(|e| failed(&e))?;
    // The volume may have shrunk since its size was compared.
    match data.iter().map(|b| b.len() as u64).sum::<u64>() == length {
        true => Ok(Answer::Data(data)),
        false => fail(errno::EINVAL, "past the end of the export"),
    }
}

fn write_zeroes(volume: &Volume, offset: u64, length: u64) -> base::Result<()> {
    let zeroes = vec![0; length.min(ZEROES as u64) as usize];
    let mut done = 0;
    while done < length {
        let n = (length - done).min(zeroes.len() as u64);
        volume.write(offset + done, &zeroes[..n as usize])?;
        done += n;
    }
    Ok(())
}

/// Runs of data and holes from `offset` on, neighbours of one state together. They may end
/// before or, but for the last one, at the end of the range.
fn status(
    volume: &Volume,
    offset: u64,
    length: u64,
    most: usize,
    extended: bool,
) -> base::Result<Vec<(u64, u32)>> {
    // Lengths have four bytes without extended headers.
    let longest = if extended { u64::MAX } else { u64::from(u32::MAX) & !0xffff };
    let (mut out, mut at, end) = (Vec::<(u64, u32)>::new(), offset, offset + length);
    while at < end {
        let Some(extent) = volume.extent(at, Io::WAIT)? else { break };
        let len = extent.len.min(end - at);
        let state = if extent.data { 0 } else { STATE_HOLE_ZERO };
        let full = out.len() == most;
        match out.last_mut() {
            Some(last) if last.1 == state && last.0 + len <= longest => last.0 += len,
            _ if full => break,
            _ => out.push((len.min(longest), state)),
        }
        at += len.min(longest);
    }
    if out.is_empty() {
        return Err(base::Error::invalid("past the end of the export"));
    }
    Ok(out)
}
