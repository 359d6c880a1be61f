//! `zpool create` (chapter 09 §4; the words as OpenZFS 2.3.2 prints them).
//!
//! # Departures from OpenZFS
//! * `-n` checks the name, the properties and the devices as thoroughly as a real creation.

use std::ffi::OsString;
use std::path::Path;

use base::{Error, Result};
use cenote::create::{
    self, FeatureWishes, When, check_mountpoint, check_pool_name, check_temporary_name,
};
use cenote::props::{dataset_prop, is_user_prop, pool_column};
use commands::getopt::Parsed;
use proto::client::Client;
use proto::runtime::Runtime;
use proto::{CreateArgs, Force, Reply, Request};
use ui::Exit;

use super::{layout, misuse, options, spec};

/// An error in a command line: the message, and whether the usage follows.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum CommandLineError {
    /// Exit 2, with the usage.
    Usage(String),
    /// Exit 1.
    Plain(String),
}

/// The options and operands of `create`.
#[derive(Debug, Default, PartialEq, Eq)]
struct CreateOptions {
    name: String,
    words: Vec<String>,
    props: Vec<(String, String)>,
    fs_props: Vec<(String, String)>,
    force: bool,
    dry_run: bool,
    no_features: bool,
    altroot: Option<String>,
    mountpoint: Option<String>,
}

/// `zpool create ...`
pub(super) fn main(argv: &[OsString]) -> Result<Exit> {
    let parsed = match options("create", argv) {
        Ok(parsed) => parsed,
        Err(exit) => return Ok(exit),
    };
    let opts = match parse_options(&parsed) {
        Ok(opts) => opts,
        Err(wrong) => return Ok(complain("create", wrong)),
    };
    match run(&opts, super::command("create", argv)) {
        Ok(exit) => Ok(exit),
        Err(CommandLineError::Plain(text)) => Err(Error::invalid(text)),
        Err(wrong) => Ok(complain("create", wrong)),
    }
}

pub(super) fn complain(command: &str, wrong: CommandLineError) -> Exit {
    match wrong {
        CommandLineError::Usage(text) => {
            misuse(command, Some(&text).filter(|t| !t.is_empty()).map(|t| &**t))
        }
        CommandLineError::Plain(text) => {
            ui::err(&text);
            Exit::FAILURE
        }
    }
}

/// Adds a property that may be given once.
fn once(
    list: &mut Vec<(String, String)>,
    name: &str,
    value: &str,
) -> std::result::Result<(), CommandLineError> {
    if list.iter().any(|(n, _)| n == name) {
        return Err(CommandLineError::Plain(format!("property '{name}' specified multiple times")));
    }
    list.push((name.to_owned(), value.to_owned()));
    Ok(())
}

/// Parses one `-o` of a new pool.
fn pool_option(opts: &mut CreateOptions, text: &str) -> std::result::Result<(), CommandLineError> {
    let plain = |text: String| Err(CommandLineError::Plain(text));
    let Some((name, value)) = text.split_once('=') else {
        return plain("missing '=' for -o option".to_owned());
    };
    let known = pool_column(name).map(|p| p.name);
    let name = match known {
        Some(name) => name,
        None if name.starts_with("feature@") => name,
        None => return plain(format!("property '{name}' is not a valid pool or vdev property")),
    };
    if name == "ashift" {
        let Ok(shift) = value.parse::<u64>() else {
            return plain("ashift must be a number.".to_owned());
        };
        if shift != 0 && !(9..=16).contains(&shift) {
            return plain(format!(
                "invalid 'ashift={value}' property: only values between 9 and 16 are allowed."
            ));
        }
    }
    if name == "altroot" {
        return set_altroot(opts, value);
    }
    once(&mut opts.props, name, value)
}

fn set_altroot(opts: &mut CreateOptions, value: &str) -> std::result::Result<(), CommandLineError> {
    if opts.altroot.is_some() {
        return Err(CommandLineError::Plain(
            "property 'altroot' specified multiple times".to_owned(),
        ));
    }
    opts.altroot = Some(value.to_owned());
    Ok(())
}

/// Parses one `-O` of a new pool.
fn fs_option(opts: &mut CreateOptions, text: &str) -> std::result::Result<(), CommandLineError> {
    let Some((name, value)) = text.split_once('=') else {
        return Err(CommandLineError::Plain("missing '=' for -O option".to_owned()));
    };
    let fits = |p: &cenote::props::Prop| p.types.intersects(cenote::props::Types::F);
    if !is_user_prop(name) && dataset_prop(name).is_none_or(|p| !fits(p)) {
        return Err(CommandLineError::Plain(format!(
            "property '{name}' is not a valid filesystem property"
        )));
    }
    if name == "mountpoint" {
        opts.mountpoint = Some(value.to_owned());
        return Ok(());
    }
    once(&mut opts.fs_props, name, value)
}

fn parse_options(parsed: &Parsed) -> std::result::Result<CreateOptions, CommandLineError> {
    let mut opts = CreateOptions {
        force: parsed.has('f'),
        dry_run: parsed.has('n'),
        no_features: parsed.has('d'),
        ..CreateOptions::default()
    };
    for opt in &parsed.opts {
        let text = opt.text();
        match opt.letter {
            'o' => pool_option(&mut opts, &text)?,
            'O' => fs_option(&mut opts, &text)?,
            'R' => set_altroot(&mut opts, &text)?,
            'm' => opts.mountpoint = Some(text),
            't' => {
                if text.contains('/') {
                    return Err(CommandLineError::Plain(format!(
                        "cannot create '{text}': invalid character '/' in temporary name\nuse \
                         'zfs create' to create a dataset"
                    )));
                }
                once(&mut opts.props, "tname", &text)?;
            }
            _ => {}
        }
    }
    let mut words = parsed.words().into_iter();
    let Some(name) = words.next() else {
        return Err(CommandLineError::Usage("missing pool name argument".to_owned()));
    };
    opts.name = name;
    opts.words = words.collect();
    if opts.words.is_empty() {
        return Err(CommandLineError::Usage("missing vdev specification".to_owned()));
    }
    check(&opts)?;
    if opts.altroot.is_some() && !opts.props.iter().any(|p| p.0 == "cachefile") {
        opts.props.push(("cachefile".to_owned(), "none".to_owned()));
    }
    Ok(opts)
}

/// Checks options that depend on each other.
fn check(opts: &CreateOptions) -> std::result::Result<(), CommandLineError> {
    let plain = |text: String| Err(CommandLineError::Plain(text));
    if opts.name.contains('/') {
        return plain(format!(
            "cannot create '{}': invalid character '/' in pool name\nuse 'zfs create' to create a \
             dataset",
            opts.name
        ));
    }
    if let Some(root) = opts.altroot.as_deref().filter(|r| !r.starts_with('/')) {
        return plain(format!("invalid alternate root '{root}': must be an absolute path"));
    }
    let has = |name: &str| opts.props.iter().any(|p| p.0.starts_with(name));
    let old = opts.props.iter().any(|p| p.0 == "version" && p.1 != "5000");
    if old && has("feature@") {
        return plain(
            "'feature@' and 'version' properties cannot be specified together".to_owned(),
        );
    }
    match &opts.mountpoint {
        Some(mountpoint) => check_mountpoint(mountpoint).or_else(plain),
        None => Ok(()),
    }
}

/// The mountpoint of the new pool, if it would be mounted.
fn directory(opts: &CreateOptions) -> Option<std::path::PathBuf> {
    let mountpoint = match opts.mountpoint.as_deref() {
        None => format!("/{}", opts.name),
        Some("none" | "legacy") => return None,
        Some(path) => path.to_owned(),
    };
    let root = opts.altroot.as_deref().unwrap_or("");
    Some(format!("{}{mountpoint}", root.trim_end_matches('/')).into())
}

/// Fails unless the directory is missing or empty.
fn check_directory(path: &Path) -> std::result::Result<(), String> {
    let hint = "use '-m' option to provide a different default";
    let shown = path.display();
    match ui::look_at(path, || std::fs::read_dir(path)) {
        Ok(mut entries) => match entries.next() {
            Some(_) => Err(format!("mountpoint '{shown}' exists and is not empty\n{hint}")),
            None => Ok(()),
        },
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(format!("mountpoint '{shown}' : {}\n{hint}", words(&e)))
        }
        Err(_) => Ok(()),
    }
}

/// The system's text for an error, without the number.
fn words(e: &std::io::Error) -> String {
    let text = e.to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}

/// The request, checked as far as the client can; and warnings.
fn request(
    opts: &CreateOptions,
    resolve: spec::Resolve<'_>,
    command: String,
) -> std::result::Result<(CreateArgs, Vec<String>), CommandLineError> {
    let plain = CommandLineError::Plain;
    let name = &opts.name;
    let vdevs = spec::parse(&opts.words, resolve).map_err(plain)?;
    let cannot = |why: String| CommandLineError::Plain(format!("cannot create '{name}': {why}"));
    let omitted = |why| cannot(format!("{why}\npool name may have been omitted"));
    check_pool_name(name).map_err(omitted)?;
    let value = |of: &str| opts.props.iter().find(|p| p.0 == of).map(|p| p.1.as_str());
    let set = create::feature_set(value("compatibility").unwrap_or("off")).map_err(|bad| {
        plain(format!("Error: could not read/parse feature file(s): {} ", bad.join(", ")))
    })?;
    if let Some(temporary) = value("tname") {
        check_temporary_name(temporary).map_err(cannot)?;
    }
    let mut wishes = FeatureWishes { none: opts.no_features, named: Vec::new() };
    let mut old = false;
    for (name, value) in &opts.props {
        match create::pool_setting(name, value, When::Create).map_err(cannot)? {
            create::PoolSetting::Feature(feature, on) => wishes.named.push((feature, on)),
            create::PoolSetting::Version(version) => old = version < 5000,
            _ => {}
        }
    }
    create::root_fs_settings(&opts.fs_props).map_err(cannot)?;
    let (features, warnings) = if old {
        (Vec::new(), Vec::new())
    } else {
        create::features_to_enable(&wishes, &set).map_err(cannot)?
    };
    let mut fs_props = opts.fs_props.clone();
    fs_props.extend(opts.mountpoint.iter().map(|m| ("mountpoint".to_owned(), m.clone())));
    let mut props: Vec<(String, String)> =
        opts.props.iter().filter(|p| !p.0.starts_with("feature@")).cloned().collect();
    props.extend(opts.altroot.iter().map(|root| ("altroot".to_owned(), root.clone())));
    let args = CreateArgs {
        name: name.clone(),
        vdevs,
        force: Force::all(opts.force),
        dry_run: opts.dry_run,
        features: features.iter().map(|f| f.name().to_owned()).collect(),
        props,
        fs_props,
        command,
    };
    Ok((args, warnings))
}

fn run(opts: &CreateOptions, command: String) -> std::result::Result<Exit, CommandLineError> {
    let (args, warnings) = request(opts, &spec::resolve, command)?;
    warnings.iter().for_each(|w| ui::err(w));
    if let Some(path) = directory(opts) {
        check_directory(&path).map_err(CommandLineError::Plain)?;
    }
    let text = |e: Error| {
        let whole = e.location() == &base::error::ErrorLocation::default();
        CommandLineError::Plain(if whole { e.message().to_owned() } else { e.to_string() })
    };
    let mut client = Runtime::from_env().and_then(|r| Client::connect(&r)).map_err(text)?;
    let tree = layout::of_new(&args.name, &args.vdevs);
    let Reply::Done = client.request(&Request::Create(Box::new(args))).map_err(text)? else {
        return Err(text(super::unexpected_reply()));
    };
    if opts.dry_run {
        ui::out(&format!("would create '{}' with the following layout:\n\n{tree}", opts.name));
    }
    Ok(Exit::failed_if(client.failed))
}

#[cfg(test)]
mod tests {
    use super::*;

    use proto::NewKind;

    fn parse(line: &str) -> std::result::Result<CreateOptions, CommandLineError> {
        let argv: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        parse_options(&commands::find("zpool", "create").parse(&argv).unwrap())
    }

    fn made(line: &str) -> std::result::Result<(CreateArgs, Vec<String>), CommandLineError> {
        let files = |text: &str| Ok(NewKind::File(text.into()));
        request(&parse(line)?, &files, "zpool create".to_owned())
    }

    fn plain(line: &str) -> String {
        match made(line) {
            Err(CommandLineError::Plain(text)) => text,
            Err(CommandLineError::Usage(text)) => format!("usage: {text}"),
            Ok(_) => "ok".to_owned(),
        }
    }

    /// Recorded from OpenZFS 2.3.2.
    #[test]
    fn messages() {
        for (line, text) in [
            ("tank /a", "ok"),
            ("-n", "usage: missing pool name argument"),
            ("tank", "usage: missing vdev specification"),
            (
                "tank/x /a",
                "cannot create 'tank/x': invalid character '/' in pool name\nuse 'zfs create' to \
                 create a dataset",
            ),
            (
                "mirror /a",
                "cannot create 'mirror': name is reserved\npool name may have been omitted",
            ),
            (
                "1tank /a",
                "cannot create '1tank': name must begin with a letter\npool name may have been \
                 omitted",
            ),
            ("-o ashift tank /a", "missing '=' for -o option"),
            ("-O compression tank /a", "missing '=' for -O option"),
            ("-o nope=1 tank /a", "property 'nope' is not a valid pool or vdev property"),
            ("-o a:b=c tank /a", "property 'a:b' is not a valid pool or vdev property"),
            ("-o =x tank /a", "property '' is not a valid pool or vdev property"),
            ("-O nope=1 tank /a", "property 'nope' is not a valid filesystem property"),
            ("-O volsize=1G tank /a", "property 'volsize' is not a valid filesystem property"),
            ("-o ashift=x tank /a", "ashift must be a number."),
            (
                "-o ashift=8 tank /a",
                "invalid 'ashift=8' property: only values between 9 and 16 are allowed.",
            ),
            ("-o ashift=12 -o ashift=13 tank /a", "property 'ashift' specified multiple times"),
            ("-O atime=on -O atime=off tank /a", "property 'atime' specified multiple times"),
            ("-o altroot=/x -R /y tank /a", "property 'altroot' specified multiple times"),
            ("-R x tank /a", "invalid alternate root 'x': must be an absolute path"),
            ("-o altroot=x tank /a", "invalid alternate root 'x': must be an absolute path"),
            ("-o size=5 tank /a", "cannot create 'tank': 'size' is readonly"),
            (
                "-o autotrim=maybe tank /a",
                "cannot create 'tank': 'autotrim' must be one of 'on | off'",
            ),
            (
                "-o compatibility=nope,/nope tank /a",
                "Error: could not read/parse feature file(s): nope, /nope ",
            ),
            (
                "-o version=28 -o feature@lz4_compress=enabled tank /a",
                "'feature@' and 'version' properties cannot be specified together",
            ),
            (
                "-m relative tank /a",
                "invalid mountpoint 'relative': must be an absolute path, 'legacy', or 'none'",
            ),
            (
                "-t x/y tank /a",
                "cannot create 'x/y': invalid character '/' in temporary name\nuse 'zfs create' to \
                 create a dataset",
            ),
            ("-O used=1 tank /a", "cannot create 'tank': 'used' is readonly"),
            ("tank mirror /a", "invalid vdev specification: mirror requires at least 2 devices"),
        ] {
            assert_eq!(plain(line), text, "{line}");
        }
    }

    #[test]
    fn what_is_sent() {
        let (args, warnings) =
            made("-fn -o ashift=12 -O compression=zstd -m none -R /alt tank mirror /a /b").unwrap();
        assert!(warnings.is_empty() && args.dry_run && args.force == Force::all(true));
        let prop = |n: &str, v: &str| (n.to_owned(), v.to_owned());
        assert_eq!(
            args.props,
            [prop("ashift", "12"), prop("cachefile", "none"), prop("altroot", "/alt")]
        );
        assert_eq!(args.fs_props, [prop("compression", "zstd"), prop("mountpoint", "none")]);
        assert!(args.features.len() > 20 && args.vdevs[0].children.len() == 2);
        let (args, _) = made("-d -o feature@lz4_compress=enabled tank /a").unwrap();
        assert_eq!(args.features, ["lz4_compress"]);
        assert!(args.props.is_empty());
        let (args, _) = made("-o version=28 tank /a").unwrap();
        assert!(args.features.is_empty());
        let (_, warnings) =
            made("-o compatibility=compat-2018 -o feature@blake3=enabled tank /a").unwrap();
        assert_eq!(
            warnings,
            [
                "Warning: feature \"blake3\" enabled but is not in specified 'compatibility' feature \
              set."
            ]
        );
    }

    #[test]
    fn where_it_would_be_mounted() {
        let at = |line: &str| directory(&parse(line).unwrap()).map(|p| p.display().to_string());
        assert_eq!(at("tank /a").as_deref(), Some("/tank"));
        assert_eq!(at("-R /alt tank /a").as_deref(), Some("/alt/tank"));
        assert_eq!(at("-R / -m /x tank /a").as_deref(), Some("/x"));
        assert_eq!(at("-m none tank /a"), None);
        assert_eq!(at("-O mountpoint=legacy tank /a"), None);
        let hint = "use '-m' option to provide a different default";
        assert_eq!(
            check_directory(Path::new("/proc")),
            Err(format!("mountpoint '/proc' exists and is not empty\n{hint}"))
        );
        assert_eq!(
            check_directory(Path::new("/proc/version")),
            Err(format!("mountpoint '/proc/version' : Not a directory\n{hint}"))
        );
        assert_eq!(check_directory(Path::new("/no/such/place")), Ok(()));
    }
}
