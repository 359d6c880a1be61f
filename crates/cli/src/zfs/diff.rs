//! `zfs diff` (chapter 09 §3.5).

use std::ffi::OsString;

use base::{Error, Result};
use proto::client::Client;
use proto::runtime::Runtime;
use proto::{DiffArgs, DiffRecord, Request};
use ui::Exit;

use super::{misuse, options, select};

/// Bytes that are gathered before they are printed.
const CHUNK: usize = 64 << 10;

#[derive(Clone, Copy, Debug, Default)]
struct Form {
    scripted: bool,
    types: bool,
    times: bool,
    raw: bool,
}

/// `zfs diff ...`
pub(super) fn main(argv: &[OsString]) -> Result<Exit> {
    let parsed = match options("diff", argv) {
        Ok(parsed) => parsed,
        Err(exit) => return Ok(exit),
    };
    let words = parsed.words();
    let (from, to) = match words.as_slice() {
        [] => return Ok(misuse("diff", Some("must provide at least one snapshot name"))),
        [from] => (from.clone(), None),
        [from, to] => (from.clone(), Some(to.clone())),
        _ => return Ok(misuse("diff", Some("too many arguments"))),
    };
    select::check_name(&from).map_err(Error::invalid)?;
    let Some((fs, _)) = from.split_once('@') else {
        let text = format!("cannot open '{from}': missing '@' delimiter in snapshot name");
        return Err(Error::invalid(text));
    };
    // A snapshot of the same file system may be named without it.
    let to = to.map(|to| if to.starts_with('@') { format!("{fs}{to}") } else { to });
    if let Some(to) = &to {
        select::check_name(to).map_err(Error::invalid)?;
    }
    let form = Form {
        scripted: parsed.has('H'),
        types: parsed.has('F'),
        times: parsed.has('t'),
        raw: parsed.has('h'),
    };
    let missing = || Error::not_found(format!("cannot open '{from}': dataset does not exist"));
    let mut client = Client::connect_for_query(&Runtime::from_env()?)?.ok_or_else(missing)?;
    let (mut pending, mut out) = (Vec::new(), Vec::new());
    let request = Request::Diff(DiffArgs { from: from.clone(), to });
    client.request_stream(&request, |bytes| {
        pending.extend_from_slice(bytes);
        let mut at = 0;
        while let Some((record, taken)) = DiffRecord::decode(&pending[at..])? {
            line(&record, form, &mut out);
            at += taken;
            if out.len() > CHUNK {
                ui::out_bytes(&std::mem::take(&mut out));
            }
        }
        pending.drain(..at);
        ui::out_bytes(&std::mem::take(&mut out));
        Ok(())
    })?;
    Ok(Exit::failed_if(client.failed))
}

fn path(bytes: &[u8], form: Form, out: &mut Vec<u8>) {
    for &b in bytes {
        if !form.raw && (b <= b' ' || b == b'\\' || b >= 0x7f) {
            out.extend(format!("\\{b:04o}").into_bytes());
        } else {
            out.push(b);
        }
    }
}

fn line(record: &DiffRecord, form: Form, out: &mut Vec<u8>) {
    if form.times {
        let (seconds, nanoseconds) = record.ctime;
        out.extend(format!("{seconds:10}.{nanoseconds:09}\t").into_bytes());
    }
    out.extend(format!("{}\t", record.change).into_bytes());
    if form.types {
        out.extend(format!("{}\t", record.kind.letter()).into_bytes());
    }
    path(&record.path, form, out);
    if let Some(new) = &record.new_path {
        out.extend_from_slice(if form.scripted { b"\t" } else { b" -> " });
        path(new, form, out);
    }
    if record.links != 0 {
        out.extend(format!("\t({:+})", record.links).into_bytes());
    }
    out.push(b'\n');
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::DiffKind;

    #[test]
    fn lines_have_openzfs_form() {
        let plain = DiffRecord {
            change: 'M',
            kind: DiffKind::File,
            links: 1,
            ctime: (1_700_000_000, 5),
            path: b"/t/a b\\\xc3\xa4\n".to_vec(),
            new_path: None,
        };
        let moved = DiffRecord {
            change: 'R',
            kind: DiffKind::Directory,
            links: 0,
            path: b"/t/old".to_vec(),
            new_path: Some(b"/t/new".to_vec()),
            ..plain.clone()
        };
        let text = |record: &DiffRecord, form| {
            let mut out = Vec::new();
            line(record, form, &mut out);
            String::from_utf8(out).unwrap()
        };
        let none = Form::default();
        assert_eq!(text(&plain, none), "M\t/t/a\\0040b\\0134\\0303\\0244\\0012\t(+1)\n");
        let all = Form { scripted: true, types: true, times: true, raw: true };
        assert_eq!(text(&plain, all), "1700000000.000000005\tM\tF\t/t/a b\\ä\n\t(+1)\n");
        assert_eq!(text(&moved, none), "R\t/t/old -> /t/new\n");
        assert_eq!(text(&moved, all), "1700000000.000000005\tR\t/\t/t/old\t/t/new\n");
    }
}
