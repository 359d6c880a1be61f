//! `zstream` beside OpenZFS's, on the golden streams, and on what is none.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::panic)]

mod common;

use std::io::Write;
use std::process::{Command, Stdio};

use common::{Said, Sandbox, said};
use testkit::{Need, golden_streams, side_by_side};

/// Runs a command with `input`, and returns its exit status, its output and its messages.
fn piped(command: &mut Command, input: &[u8]) -> (i32, Vec<u8>, String) {
    let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = pipes.spawn().unwrap();
    let mut to = child.stdin.take().unwrap();
    std::thread::scope(|scope| {
        // A command that refuses the stream reads no further.
        scope.spawn(move || to.write_all(input).map_err(drop));
        let out = child.wait_with_output().unwrap();
        let code = out.status.code().unwrap();
        (code, out.stdout, String::from_utf8_lossy(&out.stderr).into_owned())
    })
}

#[test]
fn dumps_are_those_of_openzfs() {
    let s = Sandbox::new("zstream-dump");
    let judge = testkit::has_program(Need::Zdb, "zstream", "dumps are not compared");
    let streams = golden_streams();
    side_by_side(&streams, |(name, stream)| {
        let file = s.text(name);
        std::fs::write(&file, stream).unwrap();
        for flags in [&[][..], &["-v"], &["-d"], &["-C"]] {
            let mut args = vec!["zstream", "dump"];
            args.extend(flags);
            let ours = s.ok(&[&args[..], &[file.as_str()]].concat());
            assert!(ours.contains("\tTotal stream length = "), "{name}: {ours}");
            if judge {
                let theirs = Command::new("zstream").args(&args[1..]).arg(&file).output().unwrap();
                let theirs = said(&theirs);
                assert!(ours == theirs.out, "{name} {flags:?}: {}", theirs.err);
            }
        }
        let from_pipe = piped(&mut s.command(&["zstream", "dump"]), stream);
        assert_eq!(from_pipe.0, 0, "{}", from_pipe.2);
        assert_eq!(String::from_utf8(from_pipe.1).unwrap(), s.ok(&["zstream", "dump", &file]));
        println!("COMPARED zstream dump of {name}: {} bytes", stream.len());
    });
}

#[test]
fn copies_are_the_stream_itself() {
    let s = Sandbox::new("zstream-copy");
    for (name, stream) in golden_streams() {
        let drop = &mut s.command(&["zstream", "drop_record", "-v", "77,4096"]);
        let (code, out, err) = piped(drop, &stream);
        assert_eq!((code, err.as_str()), (0, "dropped 0 records\n"), "{name}");
        assert!(out == stream, "{name}: the copy differs");
    }
}

/// Recompressed streams, there and back, beside OpenZFS's `zstream decompress`.
#[test]
fn recompressed() {
    let s = Sandbox::new("zstream-recompress");
    let streams = golden_streams();
    let plain = &streams.iter().find(|(name, _)| name == "incr").unwrap().1;
    let run = |args: &[&str], input: &[u8]| {
        let (code, out, err) = piped(&mut s.command(args), input);
        assert_eq!(code, 0, "{args:?}: {err}");
        out
    };
    for by in [&["lz4"][..], &["gzip"], &["-l", "9", "zstd"], &["zstd-fast-10"]] {
        let small = run(&[&["zstream", "recompress"], by].concat(), plain);
        assert!(small.len() < plain.len(), "{by:?}");
        let back = run(&["zstream", "recompress", "off"], &small);
        // The BEGIN names features that the first one did not need.
        assert_eq!(back.len(), plain.len());
        assert!(back[312 + 600..].len() == plain[312 + 600..].len());
        if testkit::has_program(Need::Zdb, "zstream", "the streams are not judged") {
            let (code, out, err) = piped(Command::new("zstream").args(["dump", "-v"]), &small);
            assert_eq!((code, err.as_str()), (0, ""), "{by:?}");
            let text = String::from_utf8(out).unwrap();
            assert!(text.contains("SUMMARY"), "{text}");
        }
    }
    let raw = &streams.iter().find(|(name, _)| name == "raw-incr").unwrap().1;
    let (code, _, err) = piped(&mut s.command(&["zstream", "recompress", "lz4"]), raw);
    assert_eq!((code, err.as_str()), (1, "encrypted send streams cannot be recompressed\n"));
}

#[test]
fn tokens() {
    let s = Sandbox::new("zstream-token");
    let token = "1-e83d0507a-e8-789c636064000310a500c4ec50360710e72765a5269740f80cd8e4d3d28a5381f\
                 20c0b38e0f26c48f2499525a9c540fa80382756fd25f9e9a599290c0cf3d52cccde94f69c4096e70\
                 4cbe725e6a632301418ea9739141b324840f5c1dc9b9a9b949a929f0d36971b493c393fb7a028b5b8\
                 1828050700c4f91c2d";
    let text = "nvlist version: 0\n\tobject = 0x1\n\toffset = 0x8a000\n\tbytes = 0x917c0\n\t\
                toguid = 0xc88c75ec3638269f\n\ttoname = p1/v@s1\n\tembedok = 1\n\tcompressok = 1\n";
    assert_eq!(s.ok(&["zstream", "token", token]), text);
    let changed = token.replace("63606400", "63606401");
    let err = s.fail(1, &["zstream", "token", &changed]);
    assert_eq!(err, "resume token is corrupt (incorrect checksum)\n");
}

#[test]
fn what_is_no_stream() {
    let s = Sandbox::new("zstream-bad");
    let (name, stream) = golden_streams().remove(0);
    let say = |args: &[&str], input: &[u8]| {
        let (code, out, err) = piped(&mut s.command(args), input);
        Said { code, out: String::from_utf8_lossy(&out).into_owned(), err }
    };
    let dump = |input: &[u8]| say(&["zstream", "dump", "-v"], input);
    let zeros = dump(&[0; 1000]);
    assert_eq!((zeros.code, zeros.err.as_str()), (1, "invalid stream (bad magic number)\n"));
    let cut = dump(&stream[..stream.len() - 100]);
    assert_eq!(cut.code, 1, "{name}");
    assert!(cut.err.starts_with("invalid stream: incomplete, it ends after "), "{}", cut.err);
    assert!(cut.out.contains("Total records"), "{}", cut.out);
    let mut changed = stream.clone();
    changed[1000] ^= 1;
    let changed_said = dump(&changed);
    assert_eq!(changed_said.code, 1);
    assert!(changed_said.err.contains("checksum mismatch"), "{}", changed_said.err);
    assert_eq!(say(&["zstream", "dump", "-C"], &changed).code, 0);
    let empty = dump(&[]);
    assert_eq!(empty.code, 0);
    let usage = "usage: zstream command args ...";
    for args in [
        &["zstream"][..],
        &["zstream", "nosuch"],
        &["zstream", "dump", "-x"],
        &["zstream", "dump", "a", "b"],
        &["zstream", "token"],
        &["zstream", "recompress"],
    ] {
        let err = s.fail(2, args);
        assert!(err.contains(usage), "{args:?}: {err}");
    }
    let missing = s.fail(1, &["zstream", "dump", &s.text("nosuch")]);
    assert!(missing.contains("nosuch") && missing.contains("No such file"), "{missing}");
    for (args, message) in [
        (&["zstream", "recompress", "fast"][..], "invalid compression type 'fast'\n"),
        (&["zstream", "recompress", "-l", "3", "lz4"], "'lz4' has no levels\n"),
        (&["zstream", "decompress", "12"], "invalid record '12'; it must be OBJECT,OFFSET\n"),
    ] {
        assert_eq!(s.fail(1, args), message);
    }
}
