//! Streams that become other streams: `zstream decompress`, `recompress`, `redup` and
//! `drop_record`. Each reads one stream and writes another with sums of its own.

use std::collections::{HashMap, HashSet};
use std::io::{Read, Seek, SeekFrom, Write};

use base::{Error, ErrorKind, Result};
use codec::compress::{Compression, compress, decompress as expand};

use super::reader::StreamReader;
use super::record::{self, Features, HeaderKind, StreamRecord, record_flags};
use super::writer::StreamWriter;

/// A WRITE record: its object and byte offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Selected {
    /// The object.
    pub object: u64,
    /// The offset.
    pub offset: u64,
}

/// Copies a stream. `change` gets each record and its payload, and what it returns is written
/// instead; `None` leaves the record out.
fn copy(
    input: impl Read,
    output: impl Write,
    mut change: impl FnMut(StreamRecord, &mut Vec<u8>) -> Result<Option<StreamRecord>>,
) -> Result<()> {
    let mut reader = StreamReader::new(input);
    let mut writer: Option<StreamWriter<_>> = None;
    let mut output = Some(output);
    let (mut in_package, mut in_substream) = (false, false);
    while let Some(read) = reader.next_record()? {
        let (record, mut payload) = (read.record, read.payload.to_vec());
        let to = match &mut writer {
            Some(to) => to,
            None => {
                let Some(output) = output.take() else { break };
                writer.insert(StreamWriter::with_order(output, reader.endian()))
            }
        };
        match record {
            StreamRecord::Begin(begin) => {
                in_package |= begin.kind()? == HeaderKind::Package;
                in_substream = true;
            }
            StreamRecord::End(_) if in_package && !in_substream => {
                to.finish_package()?;
                in_package = false;
                continue;
            }
            StreamRecord::End(_) => in_substream = false,
            _ => {}
        }
        if let Some(record) = change(record, &mut payload)? {
            to.write(&record, &payload)?;
        }
    }
    writer.map_or(Ok(()), |mut writer| writer.flush())
}

/// Leaves out the WRITE records selected; returns how many.
///
/// # Errors
/// Those of reading and writing streams.
pub fn drop_records(
    input: impl Read,
    output: impl Write,
    selected: &HashSet<Selected>,
) -> Result<u64> {
    let mut dropped = 0;
    copy(input, output, |record, _| {
        let StreamRecord::Write(write) = record else { return Ok(Some(record)) };
        let at = Selected { object: write.object, offset: write.offset };
        let drops = selected.contains(&at);
        dropped += u64::from(drops);
        Ok((!drops).then_some(record))
    })?;
    Ok(dropped)
}

/// Expands the payloads of the WRITE records selected, which are compressed by the function
/// given, whatever the record says; [`Compression::Off`] changes only what the record says.
/// Returns how many were changed; `failed` gets those that could not be expanded and stay.
///
/// # Errors
/// Those of reading and writing streams.
pub fn decompress(
    input: impl Read,
    output: impl Write,
    selected: &HashMap<Selected, Compression>,
    mut failed: impl FnMut(Selected),
) -> Result<u64> {
    let mut changed = 0;
    copy(input, output, |record, payload| {
        let StreamRecord::Write(mut write) = record else { return Ok(Some(record)) };
        let at = Selected { object: write.object, offset: write.offset };
        let Some(&by) = selected.get(&at) else { return Ok(Some(record)) };
        if by == Compression::Off {
            if payload.len() as u64 != write.logical_size {
                failed(at);
                return Ok(Some(record));
            }
        } else {
            let mut plain = vec![0; block_len(write.logical_size)?];
            if expand(by.id(), payload, &mut plain).is_err() {
                failed(at);
                return Ok(Some(record));
            }
            *payload = plain;
        }
        (write.compression, write.compressed_size) = (0, 0);
        changed += 1;
        Ok(Some(StreamRecord::Write(write)))
    })?;
    Ok(changed)
}

fn block_len(bytes: u64) -> Result<usize> {
    let fits = bytes <= record::BLOCK_MAX;
    if fits { Ok(bytes as usize) } else { Err(Error::corrupt("a WRITE record is too large")) }
}

/// Compresses the payloads of all WRITE records by `by`, as far as that makes them smaller.
///
/// # Errors
/// `Unsupported` for a raw stream; those of reading and writing streams.
pub fn recompress(input: impl Read, output: impl Write, by: Compression) -> Result<()> {
    copy(input, output, |record, payload| match record {
        StreamRecord::Begin(mut begin) if begin.kind()? == HeaderKind::Substream => {
            let features = begin.features();
            if features.has(Features::RAW) {
                let message = "encrypted send streams cannot be recompressed";
                return Err(Error::new(ErrorKind::Unsupported, message));
            }
            let features = features
                .with_if(Features::COMPRESSED, by != Compression::Off)
                .with_if(Features::LZ4, by == Compression::Lz4)
                .with_if(Features::ZSTD, matches!(by, Compression::Zstd(_)));
            begin.version_info = begin.version_info & 3 | features.0 << 2;
            Ok(Some(StreamRecord::Begin(begin)))
        }
        StreamRecord::Write(mut write) => {
            if write.compression != 0 {
                let mut plain = vec![0; block_len(write.logical_size)?];
                if write.compression == Compression::Off.id() {
                    plain.clone_from(payload);
                } else {
                    expand(write.compression, payload, &mut plain)?;
                }
                *payload = plain;
            }
            (write.compression, write.compressed_size) = (0, 0);
            // Metadata stays plain: a receiver could not convert its byte order.
            let metadata = ondisk::objtype::ObjType(write.object_type as u8).is_metadata();
            if by != Compression::Off && !metadata {
                let mut small = vec![0; payload.len().saturating_sub(1) & !7];
                if let Some(len) = compress(by, payload, &mut small) {
                    let padded = len.next_multiple_of(8).min(small.len());
                    small.get_mut(len..padded).unwrap_or_default().fill(0);
                    small.truncate(padded);
                    (write.compression, write.compressed_size) = (by.id(), padded as u64);
                    *payload = small;
                }
            }
            Ok(Some(StreamRecord::Write(write)))
        }
        other => Ok(Some(other)),
    })
}

/// Where the payload of a WRITE is in a file, and its record.
#[derive(Clone, Copy, Debug)]
struct Carried {
    at: u64,
    write: record::Write,
}

/// Replaces the WRITE_BYREF records of a deduplicated stream by WRITE records; returns how
/// many. The file is read twice, and WRITE records are kept by guid, object and offset.
///
/// # Errors
/// `Corrupt` for a reference to nothing; those of reading and writing streams.
pub fn redup(mut input: impl Read + Seek, output: impl Write) -> Result<u64> {
    let rewind = |e| Error::io("cannot rewind the stream", e);
    let mut carried: HashMap<(u64, u64, u64), Carried> = HashMap::new();
    {
        let mut reader = StreamReader::new(&mut input);
        while let Some(read) = reader.next_record()? {
            if let StreamRecord::Write(write) = read.record {
                let at = read.offset + record::HEADER_SIZE as u64;
                let key = (write.to_guid, write.object, write.offset);
                carried.insert(key, Carried { at, write });
            }
        }
    }
    input.seek(SeekFrom::Start(0)).map_err(rewind)?;
    let mut changed = 0;
    let shared = std::cell::RefCell::new(input);
    copy(Shared { file: &shared, at: 0 }, output, |record, payload| match record {
        StreamRecord::Begin(mut begin) => {
            let obsolete = Features::DEDUP.with(Features::DEDUP_PROPS).0;
            begin.version_info &= !(obsolete << 2);
            Ok(Some(StreamRecord::Begin(begin)))
        }
        StreamRecord::WriteByRef(by) => {
            let key = (by.ref_guid, by.ref_object, by.ref_offset);
            let Some(found) = carried.get(&key) else {
                return Err(Error::corrupt("a record refers to a block that the stream lacks"));
            };
            let mut write = found.write;
            (write.object, write.offset, write.to_guid) = (by.object, by.offset, by.to_guid);
            write.flags &= !record_flags::RAW_BYTESWAP;
            payload.resize(StreamRecord::Write(write).payload_len()?, 0);
            let mut from = Shared { file: &shared, at: found.at };
            from.read_exact(payload).map_err(|e| Error::io("cannot read the stream", e))?;
            changed += 1;
            Ok(Some(StreamRecord::Write(write)))
        }
        other => Ok(Some(other)),
    })?;
    Ok(changed)
}

/// A place in a file that several read.
struct Shared<'a, F> {
    file: &'a std::cell::RefCell<F>,
    at: u64,
}

impl<F: Read + Seek> Read for Shared<'_, F> {
    fn read(&mut self, to: &mut [u8]) -> std::io::Result<usize> {
        let mut file = self.file.borrow_mut();
        file.seek(SeekFrom::Start(self.at))?;
        let n = file.read(to)?;
        self.at += n as u64;
        Ok(n)
    }
}
