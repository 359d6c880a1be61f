//! Mounts the null file system until it is unmounted: `nullfs DIR [SIZE] [key=value ...]`.
//! Keys: `readahead` (bytes), `ttl` (seconds).

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use fuse::null::NullFs;
use fuse::{Config, FOREVER, MountOptions, Session};

fn main() -> base::Result<()> {
    let mut args = std::env::args().skip(1);
    let dir = args.next().map(PathBuf::from);
    let dir =
        dir.ok_or_else(|| base::Error::invalid("usage: nullfs DIR [SIZE] [key=value ...]"))?;
    let mut config = Config::default();
    let (mut size, mut ttl) = (4 << 30, FOREVER);
    for arg in args {
        let bad = || base::Error::invalid(format!("bad argument {arg}"));
        let number = |text: &str| text.parse::<u64>().map_err(|_| bad());
        match arg.split_once('=') {
            None => size = number(&arg)?,
            Some(("readahead", n)) => config.max_readahead = number(n)? as u32,
            Some(("ttl", n)) => ttl = Duration::from_secs(number(n)?),
            Some(_) => return Err(bad()),
        }
    }
    let options = MountOptions {
        fsname: "null".into(),
        subtype: "cenote-null".into(),
        ..MountOptions::default()
    };
    let fs = Arc::new(NullFs::new(size).with_ttl(ttl));
    let session = Session::mount(fs, &dir, &options, &config)?;
    println!("{:?}", session.negotiated());
    session.join();
    Ok(())
}
