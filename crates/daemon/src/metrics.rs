//! `/metrics`: the kstats as Prometheus's text, over HTTP/1.1.
//!
//! # Theory
//! One thread answers one request after the other, because a scrape every few seconds is the
//! whole load. The page is off by default. Any client that reaches the address can read names
//! of pools and datasets, so it should be a loopback address.
//!
//! # Invariants
//! * A request has at most [`REQUEST_MAX`] bytes and must arrive completely within
//!   [`REQUEST_TIMEOUT`], however slowly its bytes come; an answer has the same time to be sent.
//! * Only the first line of a request is interpreted.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use base::rt::{self, Instant};
use base::{Error, Result};
use cenote::kstat::{Registry, prometheus};
use proto::client::METRICS;

/// Most bytes of a request.
const REQUEST_MAX: usize = 8192;
/// Most header lines.
const HEADERS_MAX: usize = 64;
/// Time for a request, and for an answer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// An address and a port.
///
/// # Errors
/// `Invalid`, with an example.
pub(crate) fn parse(text: &str) -> Result<SocketAddr> {
    text.parse().map_err(|_| {
        let shown: String = text.chars().take(80).collect();
        Error::invalid(format!("'{shown}' is no address and port, such as 127.0.0.1:9134"))
    })
}

/// Listens at `address`, or at the address in the environment, if one is set.
///
/// # Errors
/// The text is not an address, or the address cannot be used.
pub(crate) fn start(
    registry: &Arc<Registry>,
    address: Option<String>,
) -> Result<Option<SocketAddr>> {
    let env = || std::env::var_os(METRICS).map(|t| t.to_string_lossy().into_owned());
    let Some(text) = address.or_else(env).filter(|t| !t.is_empty()) else { return Ok(None) };
    let address = parse(&text)?;
    let io = |e| Error::io(format!("cannot listen on {address}"), e);
    let listener = TcpListener::bind(address).map_err(io)?;
    let address = listener.local_addr().map_err(io)?;
    let registry = Arc::clone(registry);
    rt::spawn("metrics", move || serve(&listener, &registry))?;
    Ok(Some(address))
}

fn serve(listener: &TcpListener, registry: &Registry) {
    for stream in listener.incoming() {
        match stream {
            // A client that disconnects early is no error of the daemon's.
            Ok(stream) => drop(answer(stream, registry)),
            // Out of descriptors: do not spin.
            Err(_) => rt::sleep(Duration::from_millis(50)),
        }
    }
}

/// Time left, at least a moment: zero would mean no limit.
fn left(begin: Instant) -> std::io::Result<Duration> {
    match REQUEST_TIMEOUT.checked_sub(begin.elapsed()) {
        Some(left) if !left.is_zero() => Ok(left),
        _ => Err(std::io::ErrorKind::TimedOut.into()),
    }
}

/// The request's bytes up to the empty line; fewer if it is too long.
fn receive(stream: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let begin = rt::now();
    let mut bytes = Vec::new();
    let mut piece = [0u8; 1024];
    while bytes.len() < REQUEST_MAX && !bytes.windows(4).any(|w| w == b"\r\n\r\n") {
        stream.set_read_timeout(Some(left(begin)?))?;
        match stream.read(&mut piece)? {
            0 => break,
            n => bytes.extend_from_slice(&piece[..n]),
        }
    }
    Ok(bytes)
}

/// Status, content type and body.
fn respond(request: &[u8], registry: &Registry) -> (&'static str, &'static str, String) {
    const PLAIN: &str = "text/plain; charset=utf-8";
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut parsed = httparse::Request::new(&mut headers);
    if !matches!(parsed.parse(request), Ok(status) if status.is_complete()) {
        return ("400 Bad Request", PLAIN, "not an HTTP request\n".to_owned());
    }
    if !matches!(parsed.method, Some("GET" | "HEAD")) {
        return ("405 Method Not Allowed", PLAIN, "only GET\n".to_owned());
    }
    let path = parsed.path.unwrap_or("").split('?').next().unwrap_or("");
    match path {
        "/metrics" => {
            // Benchmark kstats have no samples, and reading them takes time.
            let kstats = registry.all(|path| !path.ends_with("_bench"));
            let page = prometheus::render(&kstats);
            ("200 OK", "text/plain; version=0.0.4; charset=utf-8", page)
        }
        "/" => ("200 OK", PLAIN, "cenote: see /metrics\n".to_owned()),
        _ => ("404 Not Found", PLAIN, "see /metrics\n".to_owned()),
    }
}

fn answer(mut stream: TcpStream, registry: &Registry) -> std::io::Result<()> {
    let request = receive(&mut stream)?;
    let (status, kind, body) = respond(&request, registry);
    let body = if request.starts_with(b"HEAD ") { (body.len(), "") } else { (body.len(), &*body) };
    let text = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\
         \r\n{}",
        body.0, body.1
    );
    let begin = rt::now();
    let mut rest = text.as_bytes();
    while !rest.is_empty() {
        stream.set_write_timeout(Some(left(begin)?))?;
        match stream.write(rest)? {
            0 => return Err(std::io::ErrorKind::WriteZero.into()),
            n => rest = &rest[n..],
        }
    }
    Ok(())
}

/// Reports the address, or why there is none.
pub(crate) fn announce(result: Result<Option<SocketAddr>>) {
    match result {
        Ok(None) => {}
        Ok(Some(address)) => ui::err(&format!("metrics at http://{address}/metrics")),
        Err(e) => ui::err(&format!("no metrics: {e}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote::kstat::Kstat;
    use proptest::prelude::*;

    fn registry() -> Registry {
        let registry = Registry::new();
        registry.register_static("arcstats", || Kstat::numbers([("hits", 7)])).unwrap();
        registry
    }

    fn status(request: &str) -> &'static str {
        respond(request.as_bytes(), &registry()).0
    }

    #[test]
    fn what_is_answered() {
        let (status_line, _, body) =
            respond(b"GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\n\r\n", &registry());
        assert_eq!(status_line, "200 OK");
        assert!(body.ends_with("node_zfs_arc_hits 7\n"), "{body}");
        assert_eq!(status("GET / HTTP/1.0\r\n\r\n"), "200 OK");
        assert_eq!(status("GET /x HTTP/1.1\r\n\r\n"), "404 Not Found");
        assert_eq!(status("POST /metrics HTTP/1.1\r\n\r\n"), "405 Method Not Allowed");
        for bad in ["", "GET /metrics", "\0\0\r\n\r\n", "GET /metrics HTTP/1.1\r\nx"] {
            assert_eq!(status(bad), "400 Bad Request", "{bad:?}");
        }
    }

    #[test]
    fn addresses() {
        assert!(parse("127.0.0.1:9134").is_ok() && parse("[::1]:0").is_ok());
        for bad in ["", "9134", "127.0.0.1", "localhost:99999", "a:b"] {
            assert!(parse(bad).unwrap_err().message().contains("127.0.0.1:9134"));
        }
    }

    proptest! {
        #[test]
        fn no_request_panics(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            respond(&bytes, &registry());
        }
    }
}
