//! `zstream`: looks into send streams and repairs them (chapter 07 §19), without a pool.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::fs::File;
use std::io::{BufReader, BufWriter, IsTerminal, Read, Write};
use std::path::Path;

use base::{Error, ErrorKind, Result};
use codec::compress::Compression;
use stream::{Dump, DumpOptions, ResumeToken, Selected};
use ui::Exit;

const USAGE: &str = "\
usage: zstream command args ...
Available commands are:

	zstream dump [-vCd] FILE
	... | zstream dump [-vCd]

	zstream decompress [-v] [OBJECT,OFFSET[,TYPE]] ...

	zstream recompress [ -l level] TYPE

	zstream token resume_token

	zstream redup [-v] FILE | ...

	zstream drop_record [-v] [OBJECT,OFFSET] ...";

/// Bytes that are read and written at a time.
const BUFFER: usize = 256 << 10;

/// `cenote zstream`; `zstreamdump` is its `dump`.
pub(crate) fn main(name: &str, argv: &[OsString]) -> Result<Exit> {
    let parsed = match commands::find("cenote", "zstream").parse(argv) {
        Ok(parsed) => parsed,
        Err(bad) => return Ok(misuse(bad.message())),
    };
    let words = parsed.words();
    let (command, operands) = match (name, words.split_first()) {
        ("zstreamdump", _) => ("dump", words.as_slice()),
        (_, Some((command, operands))) => (command.as_str(), operands),
        (_, None) => return Ok(misuse(Some("missing command argument".into()))),
    };
    let verbose = parsed.has('v');
    match (command, operands) {
        ("dump", [] | [_]) => {
            let options = DumpOptions {
                records: verbose,
                data: parsed.has('d'),
                ignores_sums: parsed.has('C'),
            };
            dump(operands.first(), options)
        }
        ("token", [token]) => {
            ui::out(&stream::list_text(&ResumeToken::decode_list(token)?));
            Ok(Exit::OK)
        }
        ("decompress", records) => decompress(records, verbose),
        ("recompress", [by]) => recompress(by, parsed.last('l')),
        ("redup", [file]) => redup(file, verbose),
        ("drop_record", records) => drop_record(records, verbose),
        ("dump" | "token" | "recompress" | "redup", _) => Ok(misuse(None)),
        (other, _) => Ok(misuse(Some(format!("invalid command '{other}'")))),
    }
}

fn misuse(message: Option<String>) -> Exit {
    if let Some(message) = message {
        ui::err(&message);
    }
    ui::err(USAGE);
    Exit::USAGE
}

fn open(file: &str) -> Result<File> {
    File::open(Path::new(file)).map_err(|e| Error::io(format!("cannot open '{file}'"), e))
}

/// Standard input, unless it is a terminal.
fn piped_input() -> Result<Box<dyn Read>> {
    let input = std::io::stdin();
    if input.is_terminal() {
        return Err(Error::invalid("a stream must be piped to the command or be named"));
    }
    Ok(Box::new(BufReader::with_capacity(BUFFER, input.lock())))
}

/// Standard output, unless it is a terminal.
fn piped_output() -> Result<BufWriter<std::io::StdoutLock<'static>>> {
    let output = std::io::stdout();
    if output.is_terminal() {
        return Err(Error::invalid(
            "the stream cannot be written to a terminal; redirect standard output",
        ));
    }
    Ok(BufWriter::with_capacity(BUFFER, output.lock()))
}

fn dump(file: Option<&String>, options: DumpOptions) -> Result<Exit> {
    let input = match file {
        Some(file) => Box::new(BufReader::with_capacity(BUFFER, open(file)?)),
        None => piped_input()?,
    };
    let mut output = BufWriter::with_capacity(BUFFER, std::io::stdout().lock());
    let result = Dump::run(input, &mut output, options);
    // What precedes an error is shown before it.
    let flushed = output.flush();
    result?;
    flushed.map_err(|e| Error::io("cannot write", e))?;
    Ok(Exit::OK)
}

/// `OBJECT,OFFSET` and what follows behind a further comma.
fn selected(text: &str) -> Result<(Selected, Option<&str>)> {
    let bad = || Error::invalid(format!("invalid record '{text}'; it must be OBJECT,OFFSET"));
    let (object, rest) = text.split_once(',').ok_or_else(bad)?;
    let (offset, rest) = rest.split_once(',').map_or((rest, None), |(o, rest)| (o, Some(rest)));
    let number = |text: &str| match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).map_err(|_| bad()),
        None => text.parse().map_err(|_| bad()),
    };
    Ok((Selected { object: number(object)?, offset: number(offset)? }, rest))
}

fn algorithm(name: &str) -> Result<Compression> {
    let known = Compression::from_name(name).filter(|_| name != "on");
    known.ok_or_else(|| Error::invalid(format!("invalid compression type '{name}'")))
}

fn decompress(records: &[String], verbose: bool) -> Result<Exit> {
    let mut all = HashMap::new();
    for text in records {
        let (record, by) = selected(text)?;
        all.insert(record, by.map_or(Ok(Compression::Lz4), algorithm)?);
    }
    let output = piped_output()?;
    let done = stream::decompress(piped_input()?, output, &all, |record| {
        let Selected { object, offset } = record;
        ui::err(&format!("decompression failed for object {object} offset {offset}"));
    })?;
    if verbose {
        ui::err(&format!("decompressed {done} records"));
    }
    Ok(Exit::OK)
}

fn recompress(by: &str, level: Option<String>) -> Result<Exit> {
    let named = algorithm(by)?;
    let by = match level {
        None => named,
        // The level is part of the name in properties.
        Some(level) => match named {
            Compression::Gzip(_) | Compression::Zstd(_) => algorithm(&format!("{by}-{level}"))?,
            _ => return Err(Error::invalid(format!("'{by}' has no levels"))),
        },
    };
    stream::recompress(piped_input()?, piped_output()?, by)?;
    Ok(Exit::OK)
}

fn redup(file: &str, verbose: bool) -> Result<Exit> {
    let input = open(file)?;
    let is_file = input.metadata().is_ok_and(|found| found.is_file());
    if !is_file {
        return Err(Error::new(ErrorKind::Invalid, "redup needs a file that it can read twice"));
    }
    let done = stream::redup(input, piped_output()?)?;
    if verbose {
        ui::err(&format!("converted stream with {done} WRITE_BYREF records"));
    }
    Ok(Exit::OK)
}

fn drop_record(records: &[String], verbose: bool) -> Result<Exit> {
    let mut all = HashSet::new();
    for text in records {
        match selected(text)? {
            (record, None) => all.insert(record),
            (_, Some(_)) => {
                let message = format!("invalid record '{text}'; it must be OBJECT,OFFSET");
                return Err(Error::invalid(message));
            }
        };
    }
    let done = stream::drop_records(piped_input()?, piped_output()?, &all)?;
    if verbose {
        ui::err(&format!("dropped {done} records"));
    }
    Ok(Exit::OK)
}
