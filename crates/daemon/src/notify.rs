//! Readiness notification to the service manager that started the daemon (systemd's protocol: a
//! datagram to the socket that `NOTIFY_SOCKET` names, by path or, after an `@`, abstract).

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Reports that the pools are available. Without a manager, nothing happens.
pub(super) fn ready() {
    let Some(name) = std::env::var_os("NOTIFY_SOCKET") else { return };
    if let Err(e) = send(&name, b"READY=1") {
        ui::err(&format!("the service manager cannot be told: {e}"));
    }
}

fn send(name: &OsStr, text: &[u8]) -> io::Result<()> {
    let to = match name.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(name)?,
    };
    UnixDatagram::unbound()?.send_to_addr(text, &to).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_of_sockets_hear_it() {
        let name = format!("cenote-notify-{}", std::process::id());
        let path = std::env::temp_dir().join(&name);
        let hears = |socket: UnixDatagram, to: &OsStr| {
            send(to, b"READY=1").unwrap();
            let mut text = [0; 16];
            let n = socket.recv(&mut text).unwrap();
            assert_eq!(&text[..n], b"READY=1");
        };
        hears(UnixDatagram::bind(&path).unwrap(), path.as_os_str());
        std::fs::remove_file(&path).unwrap();
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let abstract_name = format!("@{name}");
        hears(UnixDatagram::bind_addr(&address).unwrap(), OsStr::new(&abstract_name));
        assert!(send(path.as_os_str(), b"x").is_err());
    }
}
