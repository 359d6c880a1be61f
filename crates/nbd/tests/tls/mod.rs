//! TLS at a TCP address, with a client of another author below the NBD client of these tests.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nbd::{Limits, Tls};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use testkit::{Rng, eventually};

use super::{
    Client, MB, NbdRig, STYLES, Style, ask, counted, hello, noise, option_replies, send_option,
    u64_at,
};

type Secured = StreamOwned<ClientConnection, TcpStream>;

fn keys() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tls/keys")
}

/// A TCP address with TLS.
fn listen(rig: &NbdRig, anyone: bool) -> SocketAddr {
    let tls = Tls::from_dir(&keys(), anyone).unwrap();
    rig.server.listen_tcp("127.0.0.1:0".parse().unwrap(), Some(tls)).unwrap()
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream
}

/// A client that trusts the authority in one directory, with the certificate in another.
fn config(trusted: &Path, own: Option<&Path>) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(trusted.join("ca-cert.pem")).unwrap()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots);
    Arc::new(match own {
        Some(dir) => {
            let cert = CertificateDer::from_pem_file(dir.join("client-cert.pem")).unwrap();
            let key = PrivateKeyDer::from_pem_file(dir.join("client-key.pem")).unwrap();
            config.with_client_auth_cert(vec![cert], key).unwrap()
        }
        None => config.with_no_client_auth(),
    })
}

/// A connection whose next bytes are those of TLS.
fn started(address: SocketAddr) -> TcpStream {
    let mut stream = connect(address);
    hello(&mut stream);
    assert_eq!(ask(&mut stream, 5, &[])[0].0, 1, "the answer to STARTTLS");
    stream
}

fn session(trusted: &Path, own: Option<&Path>) -> ClientConnection {
    let name = ServerName::try_from("localhost").unwrap();
    ClientConnection::new(config(trusted, own), name).unwrap()
}

fn secure_from(address: SocketAddr, trusted: &Path, own: Option<&Path>) -> Secured {
    StreamOwned::new(session(trusted, own), started(address))
}

/// Begins TLS behind the greeting, as a client that trusts the server.
fn secure(address: SocketAddr, own: Option<&Path>) -> Secured {
    secure_from(address, &keys(), own)
}

/// Why a client gets nothing but the end: the server's alert, if it sent one.
fn refusal(mut stream: impl Read) -> String {
    match stream.read(&mut [0; 9]) {
        Ok(0) => "the end".to_owned(),
        Ok(_) => panic!("the client is served"),
        Err(e) => e.to_string(),
    }
}

#[test]
fn every_style_through_tls() {
    let rig = NbdRig::new("tls", Limits::default());
    let address = listen(&rig, false);
    for (round, style) in STYLES.into_iter().enumerate() {
        let mut c = Client::over(secure(address, Some(&keys())), "tank/vol", style);
        let data = noise(round as u64, 3_000_000);
        assert_eq!(c.call(0, 1, 12_345, 3_000_000, &data), 0);
        // Far more than the session holds is asked for before anything is read.
        for i in 0..24 {
            c.send(0, 0, 12_345 + i, 2_900_000, &[]);
        }
        let first = c.cookie - 23;
        for _ in 0..24 {
            let (cookie, error, seen) = c.receive(2_900_000);
            let at = (cookie - first) as usize;
            assert!(error == 0 && seen == data[at..at + 2_900_000], "{style:?} {at}");
        }
        assert_eq!(c.call(1, 1, 0, 3, b"FUA"), 0);
        assert_eq!(c.read(8 * MB - 1, 2), Err(22));
        if style != Style::Simple {
            assert!(!c.status(0, 0, 8 * MB).is_empty());
        }
        c.send(0, 2, 0, 0, &[]);
        assert_eq!(c.stream.read(&mut [0]).unwrap(), 0, "the end is announced");
    }
    eventually("a client stays", || rig.server.clients().is_empty());
}

#[test]
fn who_is_served() {
    let rig = NbdRig::new("tls-who", Limits::default());
    let (address, anyone) = (listen(&rig, false), listen(&rig, true));
    // Without TLS nothing is told, in any option.
    let mut s = connect(address);
    hello(&mut s);
    for option in [3, 6, 7, 8, 9, 10, 11, 77] {
        let replies = ask(&mut s, option, &[]);
        assert_eq!(replies.len(), 1);
        assert_eq!(replies[0].0, 1 << 31 | 5, "option {option}");
    }
    assert_eq!(ask(&mut s, 5, b"x")[0].0, 1 << 31 | 3);
    send_option(&mut s, 1, b"tank/vol");
    assert_eq!(s.read(&mut [0; 9]).unwrap_or(0), 0, "the old option for an export");
    // Bytes behind STARTTLS could be another's.
    let mut s = connect(address);
    hello(&mut s);
    s.write_all(&[&b"IHAVEOPT\0\0\0\x05\0\0\0\0"[..], b"IHAVEOPT\0\0\0\x03\0\0\0\0"].concat())
        .unwrap();
    assert_eq!(option_replies(&mut s, 5)[0].0, 1);
    let mut rest = Vec::new();
    let _reset = s.read_to_end(&mut rest);
    assert!(rest.is_empty());
    // What is no TLS.
    let mut s = started(address);
    s.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let mut alert = Vec::new();
    let _reset = s.read_to_end(&mut alert);
    assert!(alert.len() < 20, "{alert:?}");
    // No certificate, one of another authority, and one that has expired.
    let (stranger, expired) = (keys().join("stranger"), keys().join("expired"));
    for (own, alert) in [
        (None, "CertificateRequired"),
        (Some(&*stranger), "UnknownCA"),
        (Some(&*expired), "CertificateExpired"),
    ] {
        let why = refusal(secure(address, own));
        assert!(why.contains(alert), "{own:?}: {why}");
    }
    // A client that takes this server for a stranger.
    let mut wrong = secure_from(address, &stranger, Some(&*stranger));
    assert!(wrong.write_all(b"x").and_then(|()| wrong.flush()).is_err());
    // Any client, where that is meant.
    for own in [None, Some(&*keys())] {
        let mut c = Client::over(secure(anyone, own), "tank/vol", Style::Extended);
        assert_eq!(c.read(0, 4), Ok(vec![0; 4]));
    }
    // Options begin anew inside, and TLS does not begin twice.
    let mut s = secure(address, Some(&keys()));
    assert_eq!(ask(&mut s, 5, &[])[0].0, 1 << 31 | 3);
    assert_eq!(ask(&mut s, 10, &[])[0].0, 1 << 31 | 3, "contexts without structured replies");
    let info = ask(&mut s, 6, &[counted("tank/vol"), vec![0, 0]].concat());
    assert_eq!(u64_at(&info[0].1, 2), 8 * MB);
    // The owner disconnects.
    let c = Client::over(secure(address, Some(&keys())), "tank/vol", Style::Simple);
    rig.server.disconnect(|name| name == "tank/vol");
    assert_eq!(refusal(c.stream), "the end");
    eventually("a client stays", || rig.server.clients().len() <= 1);
}

/// Half a record, and then nothing. Another client keeps the server busy meanwhile.
#[test]
fn silence_in_the_handshake_ends_it() {
    let limits = Limits { patience: Duration::from_millis(300), ..Limits::default() };
    let rig = NbdRig::new("tls-silent", limits);
    let address = listen(&rig, false);
    let mut busy = Client::over(secure(address, Some(&keys())), "tank/vol", Style::Simple);
    let mut s = started(address);
    s.write_all(&[22, 3, 1, 2, 0]).unwrap();
    s.set_nonblocking(true).unwrap();
    let is_silent = |s: &mut TcpStream| {
        let seen = s.read(&mut [0; 9]);
        seen.is_err_and(|e| e.kind() == ErrorKind::WouldBlock)
    };
    let begin = base::rt::now();
    while is_silent(&mut s) {
        assert_eq!(busy.read(0, 4), Ok(vec![0; 4]));
        assert!(begin.elapsed() < Duration::from_secs(60), "it stays");
    }
    assert_eq!(busy.read(0, 4), Ok(vec![0; 4]));
}

/// First flights with changed bytes, cut off, followed by others, and no TLS at all; then more
/// clients that only begin than the server has places.
#[test]
fn hostile_handshakes_harm_no_other() {
    let limits = Limits { connections: 8, ..Limits::default() };
    let rig = NbdRig::new("tls-hostile", limits);
    let address = listen(&rig, false);
    let own = keys();
    let mut good = Client::over(secure(address, Some(&own)), "tank/vol", Style::Extended);
    let mut flight = Vec::new();
    session(&own, Some(&own)).write_tls(&mut flight).unwrap();
    let mut rng = Rng::new(5);
    for case in 0..120 {
        let mut bytes = flight.clone();
        match case % 4 {
            0 => bytes.truncate(rng.below(flight.len() as u64) as usize),
            1 => {
                for _ in 0..=rng.below(4) {
                    bytes[rng.below(flight.len() as u64) as usize] = rng.below(256) as u8;
                }
            }
            2 => {
                bytes.extend([rng.below(30) as u8, 3, rng.below(5) as u8, rng.below(256) as u8]);
                bytes.extend(noise(case, 70_000));
            }
            _ => bytes = noise(case, 5000),
        }
        let mut s = started(address);
        let piece = 1 + rng.below(bytes.len() as u64 + 1) as usize;
        // It may end the connection before the last piece.
        let _ended = bytes.chunks(piece.max(16)).try_for_each(|piece| s.write_all(piece));
        let _ended = s.shutdown(std::net::Shutdown::Write);
        let mut seen = Vec::new();
        let _reset = s.read_to_end(&mut seen);
        assert!(seen.len() < 16 << 10, "case {case}: {} bytes", seen.len());
    }
    assert_eq!(good.read(0, 4), Ok(vec![0; 4]));
    let begun: Vec<TcpStream> = (0..20)
        .map(|_| {
            let mut s = started(address);
            s.write_all(&flight[..flight.len() / 2]).unwrap();
            s
        })
        .collect();
    assert_eq!(good.read(0, 4), Ok(vec![0; 4]));
    let mut other = Client::over(secure(address, Some(&own)), "tank/vol", Style::Structured);
    assert_eq!(other.read(0, 4), Ok(vec![0; 4]));
    assert_eq!(rig.server.clients().len(), 8);
    drop(begun);
    eventually("who only began stays", || rig.server.clients().len() == 2);
    assert_eq!((good.read(0, 4), other.read(0, 4)), (Ok(vec![0; 4]), Ok(vec![0; 4])));
}

#[test]
fn identities_that_are_not_whole() {
    let scratch = testkit::Scratch::new("nbd-tls-identity");
    let why = |anyone| Tls::from_dir(scratch.path(), anyone).unwrap_err().to_string();
    let copy = |file: &str| {
        std::fs::copy(keys().join(file), scratch.path().join(file)).unwrap();
    };
    assert!(why(true).contains("server-cert.pem"));
    copy("server-cert.pem");
    assert!(why(true).contains("server-key.pem"));
    copy("server-key.pem");
    assert!(Tls::from_dir(scratch.path(), true).is_ok());
    assert!(why(false).contains("ca-cert.pem"));
    std::fs::write(scratch.path().join("ca-cert.pem"), "nothing").unwrap();
    assert!(why(false).contains("no certificate"));
    // The key of another certificate.
    std::fs::copy(keys().join("client-key.pem"), scratch.path().join("server-key.pem")).unwrap();
    assert!(why(true).contains("server-cert.pem"));
}
