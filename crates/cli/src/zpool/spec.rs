//! The vdev grammar of `zpool create` and `zpool add` (chapter 09 §4.1; the words
//! as OpenZFS 2.3.2 prints them).
//!
//! ```text
//! [mirror|raidz[1-3]|draid[1-3][:Nd][:Nc][:Ns]] dev...    a vdev
//! log | special | dedup                                    what the next are for
//! spare | cache  dev...                                    single devices
//! ```

use std::path::{Path, PathBuf};

use cenote::create::draid_layout;
use proto::{NewKind, NewVdev, VdevRole};

/// Directories in which short names are searched.
const DIRS: [&str; 9] = [
    "/dev/disk/by-vdev",
    "/dev/mapper",
    "/dev/disk/by-partlabel",
    "/dev/disk/by-partuuid",
    "/dev/disk/by-label",
    "/dev/disk/by-uuid",
    "/dev/disk/by-id",
    "/dev/disk/by-path",
    "/dev",
];
const CHILDREN_MAX: usize = 255;

/// A word of the vdev grammar.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Word<'a> {
    Mirror,
    Raidz(u32),
    /// Parity, and the parameters after it.
    Draid(u32, &'a str),
    Class(VdevRole),
    Device,
}

fn word(text: &str) -> Word<'_> {
    let class = match text {
        "mirror" => return Word::Mirror,
        "log" => VdevRole::Log,
        "cache" => VdevRole::Cache,
        "spare" => VdevRole::Spare,
        "special" => VdevRole::Special,
        "dedup" => VdevRole::Dedup,
        _ => {
            let parity = |digits: &str| match digits {
                "" | "1" => Some(1),
                "2" => Some(2),
                "3" => Some(3),
                _ => None,
            };
            if let Some(parity) = text.strip_prefix("raidz").and_then(parity) {
                return Word::Raidz(parity);
            }
            let Some(rest) = text.strip_prefix("draid") else { return Word::Device };
            let end = rest.find(':').unwrap_or(rest.len());
            let (digits, params) = rest.split_at(end);
            return parity(digits).map_or(Word::Device, |p| Word::Draid(p, params));
        }
    };
    Word::Class(class)
}

/// Finds a device.
pub(super) type Resolve<'a> = &'a dyn Fn(&str) -> Result<NewKind, String>;

fn bad(what: impl std::fmt::Display) -> String {
    format!("invalid vdev specification: {what}")
}

struct Parser<'a> {
    words: std::iter::Peekable<std::slice::Iter<'a, String>>,
    resolve: Resolve<'a>,
    class: VdevRole,
    seen: Vec<VdevRole>,
    out: Vec<NewVdev>,
}

/// Parses the words after the pool's name.
///
/// # Errors
/// The whole message.
pub(super) fn parse(words: &[String], resolve: Resolve<'_>) -> Result<Vec<NewVdev>, String> {
    let mut parser = Parser {
        words: words.iter().peekable(),
        resolve,
        class: VdevRole::Normal,
        seen: Vec::new(),
        out: Vec::new(),
    };
    while let Some(text) = parser.words.next() {
        parser.vdev(text)?;
    }
    parser.log_has_devices()?;
    if parser.out.len() > proto::DEVICES_MAX {
        return Err(bad("too many devices"));
    }
    Ok(parser.out)
}

impl Parser<'_> {
    fn vdev(&mut self, text: &str) -> Result<(), String> {
        match word(text) {
            Word::Device => {
                let kind = (self.resolve)(text)?;
                self.push(kind, Vec::new());
            }
            Word::Class(class) => return self.class(text, class),
            Word::Mirror => {
                let children = self.children("mirror", 2)?;
                self.push(NewKind::Mirror, children);
            }
            Word::Raidz(parity) => {
                self.not_a_log("raidz")?;
                let name =
                    if text == "raidz" { "raidz".to_owned() } else { format!("raidz{parity}") };
                let children = self.children(&name, parity as usize + 1)?;
                self.push(NewKind::Raidz(parity), children);
            }
            Word::Draid(parity, params) => {
                self.not_a_log("draid")?;
                let children = self.children(text, parity as usize + 1)?;
                let kind = draid(text, parity, params, children.len())?;
                self.push(kind, children);
            }
        }
        Ok(())
    }

    fn not_a_log(&self, word: &str) -> Result<(), String> {
        if self.class == VdevRole::Log {
            return Err(bad(format!("unsupported 'log' device: {word}")));
        }
        Ok(())
    }

    fn push(&mut self, kind: NewKind, children: Vec<NewVdev>) {
        self.out.push(NewVdev { kind, class: self.class, children });
    }

    /// `log` must be followed by a device.
    fn log_has_devices(&self) -> Result<(), String> {
        if self.class == VdevRole::Log && self.out.last().is_none_or(|v| v.class != VdevRole::Log) {
            return Err(bad("log requires at least 1 device"));
        }
        Ok(())
    }

    /// A word that sets the class of the following vdevs.
    fn class(&mut self, text: &str, class: VdevRole) -> Result<(), String> {
        self.log_has_devices()?;
        let once = matches!(class, VdevRole::Log | VdevRole::Cache | VdevRole::Spare);
        if once && self.seen.contains(&class) {
            return Err(bad(format!("'{text}' can be specified only once")));
        }
        self.seen.push(class);
        self.class = class;
        if matches!(class, VdevRole::Cache | VdevRole::Spare) {
            for device in self.children(text, 1)? {
                self.out.push(NewVdev { class, ..device });
            }
            self.class = VdevRole::Normal;
        }
        Ok(())
    }

    /// The devices that follow, up to the next keyword.
    fn children(&mut self, name: &str, least: usize) -> Result<Vec<NewVdev>, String> {
        let mut texts = Vec::new();
        while let Some(text) = self.words.next_if(|w| word(w) == Word::Device) {
            texts.push(text);
        }
        if texts.len() < least {
            return Err(bad(format!("{name} requires at least {least} devices")));
        }
        if texts.len() > CHILDREN_MAX && least > 1 {
            return Err(bad(format!("{name} supports no more than {CHILDREN_MAX} devices")));
        }
        let one = |text: &String| {
            let kind = (self.resolve)(text)?;
            Ok(NewVdev { kind, class: VdevRole::Normal, children: Vec::new() })
        };
        texts.into_iter().map(one).collect()
    }
}

/// The parameters after `draid2`: `:4d:11c:1s`, in any order.
fn draid(text: &str, nparity: u32, params: &str, children: usize) -> Result<NewKind, String> {
    let syntax = || format!("invalid dRAID syntax; expected [:<number><c|d|s>] not '{text}'");
    let (mut ndata, mut nspares, mut count) = (None, 0, None);
    for param in params.split(':').skip(1) {
        let unit = param.chars().next_back().filter(|c| "cds".contains(*c)).ok_or_else(syntax)?;
        let digits = &param[..param.len() - 1];
        if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
            return Err(syntax());
        }
        let n: u32 = digits.parse().map_err(|_| syntax())?;
        match unit {
            'c' => count = Some(n),
            'd' => ndata = Some(n),
            _ => nspares = n,
        }
    }
    if let Some(count) = count.filter(|&c| c as usize != children) {
        return Err(format!(
            "invalid number of dRAID children; {count} required but {children} provided"
        ));
    }
    match draid_layout(children, nparity, ndata, nspares) {
        Ok(layout) => Ok(NewKind::Draid(nparity, Some(layout.ndata), nspares)),
        Err(e) => Err(e.message().to_owned()),
    }
}

/// Finds a device of this system: a full path, or a name in the directories of
/// devices.
///
/// # Errors
/// The whole message.
pub(super) fn resolve(text: &str) -> Result<NewKind, String> {
    if text.starts_with('/') {
        let path = Path::new(text);
        return kind_of(path).unwrap_or_else(|| Err(format!("cannot resolve path '{text}'")));
    }
    let places = DIRS.iter().map(|dir| Path::new(dir).join(text));
    let missing = || {
        Err(format!(
            "cannot open '{text}': no such device in /dev\nmust be a full path or shorthand \
             device name"
        ))
    };
    places.filter(|_| !text.is_empty()).find_map(|p| kind_of(&p)).unwrap_or_else(missing)
}

/// The type of the file at a path; `None` if there is none.
fn kind_of(path: &Path) -> Option<Result<NewKind, String>> {
    use std::os::unix::fs::FileTypeExt;
    let meta = ui::look_at(path, || std::fs::metadata(path)).ok()?;
    let path = PathBuf::from(path);
    Some(if meta.file_type().is_block_device() {
        Ok(NewKind::Disk(path))
    } else if meta.is_file() {
        Ok(NewKind::File(path))
    } else {
        Err(format!("cannot use '{}': must be a block device or regular file", path.display()))
    })
}

#[cfg(test)]
mod tests {
    use super::super::layout;
    use super::*;
    use proptest::prelude::*;

    /// Every name but `nope` is a file.
    fn files(text: &str) -> Result<NewKind, String> {
        if text.starts_with('/') { Ok(NewKind::File(text.into())) } else { resolve(text) }
    }

    /// The layout, or the message.
    fn run(line: &str) -> String {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        match parse(&words, &files) {
            Ok(vdevs) => layout::of_new("tank", &vdevs),
            Err(message) => message,
        }
    }

    /// Recorded from OpenZFS 2.3.2's `zpool create -n`.
    #[test]
    fn layouts() {
        assert_eq!(run("/a"), "\ttank\n\t  /a\n");
        assert_eq!(run("mirror /a /b"), "\ttank\n\t  mirror\n\t    /a\n\t    /b\n");
        assert_eq!(run("raidz /a /b"), "\ttank\n\t  raidz1\n\t    /a\n\t    /b\n");
        assert!(run("draid /a /b /c").starts_with("\ttank\n\t  draid1:2d:3c:0s\n"));
        assert!(run("draid1:1d:1s /a /b /c /d").contains("draid1:1d:4c:1s\n"));
        assert!(run("draid2:3c /a /b /c").contains("draid2:1d:3c:0s\n"));
        assert!(run("draid1:1s:1d /a /b /c").contains("draid1:1d:3c:1s\n"));
        assert!(run("draid1:1d:1d /a /b /c").contains("draid1:1d:3c:0s\n"));
        assert_eq!(run("/a special"), "\ttank\n\t  /a\n");
        assert_eq!(run("/a special special /b"), "\ttank\n\t  /a\n\tspecial\n\t  /b\n");
        let all = "/a raidz1 /c /d mirror /e /g log mirror /h /i /j special /k spare /l cache /m \
                   /n dedup /b";
        assert_eq!(
            run(all),
            "\ttank\n\t  /a\n\t  raidz1\n\t    /c\n\t    /d\n\t  mirror\n\t    /e\n\t    /g\n\
             \tdedup\n\t  /b\n\tspecial\n\t  /k\n\tlogs\n\t  mirror\n\t    /h\n\t    /i\n\t    \
             /j\n\tcache\n\t  /m\n\t  /n\n\tspares\n\t  /l\n"
        );
    }

    /// Recorded likewise.
    #[test]
    fn refusals() {
        let spec = "invalid vdev specification: ";
        for (line, why) in [
            ("mirror /a", "mirror requires at least 2 devices"),
            ("mirror", "mirror requires at least 2 devices"),
            ("raidz2 /a /b", "raidz2 requires at least 3 devices"),
            ("raidz1 /a", "raidz1 requires at least 2 devices"),
            ("draid1:x /a", "draid1:x requires at least 2 devices"),
            ("draid3 /a /b /c", "draid3 requires at least 4 devices"),
            ("draid /a", "draid requires at least 2 devices"),
            ("/a log /b log /c", "'log' can be specified only once"),
            ("/a spare /b spare /c", "'spare' can be specified only once"),
            ("/a cache /b cache /c", "'cache' can be specified only once"),
            ("/a log /b special /k log /c", "'log' can be specified only once"),
            ("/a cache mirror /b /c", "cache requires at least 1 devices"),
            ("/a spare mirror /b /c", "spare requires at least 1 devices"),
            ("/a log raidz /b /c", "unsupported 'log' device: raidz"),
            ("/a log", "log requires at least 1 device"),
            ("/a log special /b", "log requires at least 1 device"),
            ("raidz /a", "raidz requires at least 2 devices"),
            ("/a cache", "cache requires at least 1 devices"),
        ] {
            assert_eq!(run(line), format!("{spec}{why}"), "{line}");
        }
        for word in ["draid4", "draid0", "draid12", "draidx", "raidz4", "raidz0", "raidz1x"] {
            let device = format!(
                "cannot open '{word}': no such device in /dev\nmust be a full path or shorthand \
                 device name"
            );
            assert_eq!(run(&format!("{word} /a /b")), device);
        }
        for word in ["draid:", "draid1:2x", "draid1:d"] {
            let syntax = format!("invalid dRAID syntax; expected [:<number><c|d|s>] not '{word}'");
            assert_eq!(run(&format!("{word} /a /b /c")), syntax);
        }
        assert_eq!(
            run("draid1:4c /a /b /c"),
            "invalid number of dRAID children; 4 required but 3 provided"
        );
        assert_eq!(
            run("draid1:1d:101s /a /b /c /d"),
            "invalid number of dRAID spares 101; additional disks would be required"
        );
        assert_eq!(
            run("draid1:33d /a /b /c"),
            "requested number of dRAID data disks per group 33 is too high,\nat most 2 disks are \
             available for data"
        );
    }

    #[test]
    fn devices_of_this_system() {
        assert_eq!(resolve("/no/such"), Err("cannot resolve path '/no/such'".into()));
        let directory = std::env::temp_dir().display().to_string();
        let text = format!("cannot use '{directory}': must be a block device or regular file");
        assert_eq!(resolve(&directory), Err(text));
        assert!(resolve("/dev/null").unwrap_err().contains("must be a block device"));
        assert!(resolve("").unwrap_err().contains("no such device"));
    }

    proptest! {
        #[test]
        fn no_words_panic(words in prop::collection::vec(prop_oneof![
            prop::sample::select(vec!["mirror", "raidz", "raidz3", "draid", "log", "cache", "spare", "special", "dedup", "/a", "/b", "/c"]).prop_map(str::to_owned),
            "draid[0-4]?(:[0-9]{0,12}[cdsé]){0,3}",
        ], 0..12)) {
            if let Ok(vdevs) = parse(&words, &files) {
                // Every device of the command line is in the result.
                let named = words.iter().filter(|w| w.starts_with('/')).count();
                let got: usize = vdevs.iter().map(|v| v.children.len().max(1)).sum();
                prop_assert_eq!(named, got);
                layout::of_new("tank", &vdevs);
            }
        }
    }
}
