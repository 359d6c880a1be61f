//! The text of `zstream dump` (chapter 07 §17, §19).

use std::fmt;
use std::io::{Read, Write};

use base::{Error, ErrorKind, Result};
use nvlist::{NvList, Value};

use super::reader::{ReadRecord, StreamReader};
use super::record::{Begin, HEADER_SIZE, StreamRecord};

/// What is printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DumpOptions {
    /// A line for each record (`-v`).
    pub records: bool,
    /// Payloads in hexadecimal, and the sum of each record (`-d`).
    pub data: bool,
    /// Sums are not compared (`-C`).
    pub ignores_sums: bool,
}

/// Records and bytes of one type.
#[derive(Clone, Copy, Debug, Default)]
struct TypeTally {
    records: u64,
    payload: u64,
}

/// What a dump has counted.
#[derive(Clone, Debug, Default)]
pub struct Dump {
    tallies: [TypeTally; StreamRecord::TYPES],
}

/// Types in the order of the summary; OBJECT_RANGE and REDACT are only in its totals.
const SUMMARY: [(usize, &str); 9] = [
    (0, "BEGIN"),
    (5, "END"),
    (1, "OBJECT"),
    (2, "FREEOBJECTS"),
    (3, "WRITE"),
    (6, "WRITE_BYREF"),
    (8, "WRITE_EMBEDDED"),
    (4, "FREE"),
    (7, "SPILL"),
];

impl Dump {
    /// Prints all streams in `input`, one after the other, and a summary.
    ///
    /// # Errors
    /// Those of [`StreamReader::next_record`], after what precedes the error was printed; those
    /// of writing.
    pub fn run(input: impl Read, output: &mut impl Write, options: DumpOptions) -> Result<()> {
        let mut reader = StreamReader::new(input);
        if options.ignores_sums {
            reader = reader.without_sums();
        }
        let mut dump = Dump::default();
        loop {
            match reader.next_record() {
                Ok(Some(read)) => dump.record(&read, output, options).map_err(cannot_write)?,
                Ok(None) => break,
                Err(e) if e.kind() == ErrorKind::Interrupted => {
                    dump.summary(output).map_err(cannot_write)?;
                    return Err(e);
                }
                Err(e) => return Err(e),
            }
        }
        dump.summary(output).map_err(cannot_write)
    }

    fn record(
        &mut self,
        read: &ReadRecord<'_>,
        output: &mut impl Write,
        options: DumpOptions,
    ) -> std::io::Result<()> {
        if let Some(tally) = self.tallies.get_mut(read.record.type_id() as usize) {
            tally.records += 1;
            tally.payload += read.payload.len() as u64;
        }
        match &read.record {
            StreamRecord::Begin(begin) => {
                write!(output, "{}", BeginText(begin))?;
                if options.records || options.data {
                    writeln!(output)?;
                }
                if let Ok(list) = NvList::unpack(read.payload) {
                    write!(output, "{}", ListText { list: &list, depth: 0 })?;
                }
            }
            StreamRecord::End(end) => {
                let [a, b, c, d] = end.checksum;
                writeln!(output, "END checksum = {a:x}/{b:x}/{c:x}/{d:x}")?;
            }
            record if options.records || options.data => {
                let payload = read.payload;
                writeln!(output, "{}", RecordText { record, payload: payload.len() })?;
                if options.data && !payload.is_empty() {
                    hex(payload, output)?;
                }
            }
            _ => {}
        }
        if options.data && !matches!(read.record, StreamRecord::Begin(_)) {
            let [a, b, c, d] = read.stored_sum;
            writeln!(output, "    checksum = {a:x}/{b:x}/{c:x}/{d:x}")?;
        }
        Ok(())
    }

    fn summary(&self, output: &mut impl Write) -> std::io::Result<()> {
        writeln!(output, "SUMMARY:")?;
        for (id, name) in SUMMARY {
            let TypeTally { records, payload } = self.tallies.get(id).copied().unwrap_or_default();
            writeln!(output, "\tTotal DRR_{name} records = {records} ({payload} bytes)")?;
        }
        let records: u64 = self.tallies.iter().map(|t| t.records).sum();
        let payload: u64 = self.tallies.iter().map(|t| t.payload).sum();
        let headers = records * HEADER_SIZE as u64;
        let all = headers + payload;
        writeln!(output, "\tTotal records = {records}")?;
        writeln!(output, "\tTotal payload size = {payload} ({payload:#x})")?;
        writeln!(output, "\tTotal header overhead = {headers} ({headers:#x})")?;
        writeln!(output, "\tTotal stream length = {all} ({all:#x})")
    }
}

fn cannot_write(e: std::io::Error) -> Error {
    Error::io("cannot write", e)
}

/// Rows of sixteen bytes, in hexadecimal and as characters.
fn hex(bytes: &[u8], output: &mut impl Write) -> std::io::Result<()> {
    for row in bytes.chunks(16) {
        for i in 0..16 {
            match row.get(i) {
                Some(byte) => write!(output, " {byte:02x}")?,
                None => write!(output, "   ")?,
            }
            if i % 4 == 3 {
                write!(output, " ")?;
            }
        }
        write!(output, "  ")?;
        for (i, &byte) in row.iter().enumerate() {
            let shown = if (32..127).contains(&byte) { char::from(byte) } else { '.' };
            let gap = if i % 4 == 0 && i > 0 { " " } else { "" };
            write!(output, "{gap}{shown}")?;
        }
        writeln!(output)?;
    }
    Ok(())
}

struct BeginText<'a>(&'a Begin);

impl fmt::Display for BeginText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let begin = self.0;
        writeln!(f, "BEGIN record")?;
        writeln!(f, "\thdrtype = {}", begin.version_info & 3)?;
        writeln!(f, "\tfeatures = {:x}", begin.features().0)?;
        writeln!(f, "\tmagic = {:x}", begin.magic)?;
        writeln!(f, "\tcreation_time = {:x}", begin.creation_time)?;
        writeln!(f, "\ttype = {}", begin.objset_type)?;
        writeln!(f, "\tflags = {:#x}", begin.flags)?;
        writeln!(f, "\ttoguid = {:x}", begin.to_guid)?;
        writeln!(f, "\tfromguid = {:x}", begin.from_guid)?;
        writeln!(f, "\ttoname = {}", begin.to_name().unwrap_or("?"))?;
        writeln!(f, "\tpayloadlen = {}", begin.payload_len)
    }
}

struct Hex<'a>(&'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

struct RecordText<'a> {
    record: &'a StreamRecord,
    payload: usize,
}

impl fmt::Display for RecordText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let payload = self.payload;
        match self.record {
            StreamRecord::Begin(_) | StreamRecord::End(_) => Ok(()),
            StreamRecord::Object(r) => write!(
                f,
                "OBJECT object = {} type = {} bonustype = {} blksz = {} bonuslen = {} \
                 dn_slots = {} raw_bonuslen = {} flags = {} maxblkid = {} indblkshift = {} \
                 nlevels = {} nblkptr = {}",
                r.object,
                r.object_type,
                r.bonus_type,
                r.block_size,
                r.bonus_len,
                r.slots,
                r.raw_bonus_len,
                r.flags,
                r.max_block,
                r.indirect_shift,
                r.levels,
                r.pointers
            ),
            StreamRecord::FreeObjects(r) => {
                write!(f, "FREEOBJECTS firstobj = {} numobjs = {}", r.first, r.count)
            }
            StreamRecord::Write(r) => write!(
                f,
                "WRITE object = {} type = {} checksum type = {} compression type = {} \
                 flags = {} offset = {} logical_size = {} compressed_size = {} \
                 payload_size = {payload} props = {:x} salt = {} iv = {} mac = {}",
                r.object,
                r.object_type,
                r.checksum_type,
                r.compression,
                r.flags,
                r.offset,
                r.logical_size,
                r.compressed_size,
                r.key_prop,
                Hex(&r.salt),
                Hex(&r.iv),
                Hex(&r.mac)
            ),
            StreamRecord::Free(r) => write!(
                f,
                "FREE object = {} offset = {} length = {}",
                r.object, r.offset, r.length as i64
            ),
            StreamRecord::Redact(r) => write!(
                f,
                "REDACT object = {} offset = {} length = {}",
                r.object, r.offset, r.length
            ),
            StreamRecord::WriteByRef(r) => write!(
                f,
                "WRITE_BYREF object = {} checksum type = {} props = {:x} offset = {} \
                 length = {} toguid = {:x} refguid = {:x} refobject = {} refoffset = {}",
                r.object,
                r.checksum_type,
                r.key_prop,
                r.offset,
                r.length,
                r.to_guid,
                r.ref_guid,
                r.ref_object,
                r.ref_offset
            ),
            StreamRecord::Spill(r) => write!(
                f,
                "SPILL block for object = {} length = {} flags = {} compression type = {} \
                 compressed_size = {} payload_size = {payload} salt = {} iv = {} mac = {}",
                r.object,
                r.length,
                r.flags,
                r.compression,
                r.compressed_size,
                Hex(&r.salt),
                Hex(&r.iv),
                Hex(&r.mac)
            ),
            StreamRecord::WriteEmbedded(r) => write!(
                f,
                "WRITE_EMBEDDED object = {} offset = {} length = {} toguid = {:x} comp = {} \
                 etype = {} lsize = {} psize = {}",
                r.object,
                r.offset,
                r.length,
                r.to_guid,
                r.compression,
                r.embedded_type,
                r.logical_size,
                r.physical_size
            ),
            StreamRecord::ObjectRange(r) => write!(
                f,
                "OBJECT_RANGE firstobj = {} numslots = {} flags = {} salt = {} iv = {} mac = {}",
                r.first,
                r.slots,
                r.flags,
                Hex(&r.salt),
                Hex(&r.iv),
                Hex(&r.mac)
            ),
        }
    }
}

/// A list as `zstream token` and `zstream dump` print it.
pub fn list_text(list: &NvList) -> String {
    ListText { list, depth: 0 }.to_string()
}

struct ListText<'a> {
    list: &'a NvList,
    depth: usize,
}

impl fmt::Display for ListText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tabs = |f: &mut fmt::Formatter<'_>, n: usize| (0..n).try_for_each(|_| write!(f, "\t"));
        tabs(f, self.depth)?;
        writeln!(f, "nvlist version: 0")?;
        for (name, value) in self.list.iter() {
            tabs(f, self.depth + 1)?;
            if let Value::List(list) = value {
                writeln!(f, "{name} = (embedded nvlist)")?;
                write!(f, "{}", ListText { list, depth: self.depth + 1 })?;
                tabs(f, self.depth + 1)?;
                writeln!(f, "(end {name})\n")?;
                continue;
            }
            write!(f, "{name} =")?;
            match value {
                Value::Boolean => write!(f, " 1")?,
                Value::String(text) => write!(f, " {text}")?,
                Value::Uint64(n) => write!(f, " {n:#x}")?,
                Value::Uint32(n) => write!(f, " {n:#x}")?,
                Value::Uint64Array(all) => all.iter().try_for_each(|n| write!(f, " {n:#x}"))?,
                Value::ByteArray(all) | Value::Uint8Array(all) => {
                    all.iter().try_for_each(|n| write!(f, " {n:#x}"))?;
                }
                Value::BooleanValue(set) => write!(f, " {}", i32::from(*set))?,
                other => write!(f, " {other:?}")?,
            }
            writeln!(f)?;
        }
        Ok(())
    }
}
