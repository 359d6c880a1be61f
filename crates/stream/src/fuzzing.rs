//! Entry points of the fuzzers in `fuzz/`, which the tests run over the corpus as well.

use std::io::Cursor;

use codec::compress::Compression;

use crate::dump::{Dump, DumpOptions};
use crate::package::PackageHeader;
use crate::reader::StreamReader;
use crate::record::{Features, HEADER_SIZE, HeaderKind, StreamRecord};
use crate::rewrite::{recompress, redup};
use crate::token::ResumeToken;
use crate::writer::StreamWriter;

/// Reads any bytes as a stream, with and without its sums, and as all that is made of streams.
pub fn fuzz_stream(data: &[u8]) {
    for verifies in [true, false] {
        let mut reader = StreamReader::new(data);
        if !verifies {
            reader = reader.without_sums();
        }
        while let Ok(Some(read)) = reader.next_record() {
            let _checked = read.record.check(Features(u64::MAX), u32::MAX);
            if let StreamRecord::Begin(_) = read.record {
                let _list = PackageHeader::parse(read.payload);
            }
        }
        let options = DumpOptions { records: true, data: true, ignores_sums: !verifies };
        let _dumped = Dump::run(data, &mut std::io::sink(), options);
    }
    let _small = recompress(data, std::io::sink(), Compression::Lz4);
    let _plain = recompress(data, std::io::sink(), Compression::Off);
    let _whole = redup(Cursor::new(data), std::io::sink());
    if let Ok(text) = std::str::from_utf8(data) {
        let _token = ResumeToken::decode(text);
    }
}

/// The stream with right sums, as far as it is legible: so changes of its bytes reach what is
/// behind the reader.
pub fn with_sums(data: &[u8]) -> Vec<u8> {
    let mut reader = StreamReader::new(data).without_sums();
    let mut writer = StreamWriter::new(Vec::new());
    let mut in_package = false;
    while let Ok(Some(read)) = reader.next_record() {
        if let StreamRecord::Begin(begin) = read.record {
            in_package |= matches!(begin.kind(), Ok(HeaderKind::Package));
        }
        if writer.write(&read.record, read.payload).is_err() {
            break;
        }
        if in_package && reader.is_complete() {
            // The last record has no sum: it is written again.
            let mut bytes = writer.into_inner();
            bytes.truncate(bytes.len() - HEADER_SIZE);
            let mut end = StreamWriter::new(bytes);
            let _written = end.finish_package();
            return end.into_inner();
        }
    }
    writer.into_inner()
}
