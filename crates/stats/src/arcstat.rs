//! `arcstat` (chapter 09 §7.1), the present one and that of 2007.

use std::ffi::OsString;
use std::io::Write;
use std::time::Duration;

use base::{Error, Result, rt};
use cenote::kstat::Kstat;
use commands::getopt::{Bad, Parsed};
use ui::{Exit, time};

use super::fields::{self, ArcField, FieldUnit, Sample};
use super::number;
use super::source::StatSource;

const USAGE: &str = "\
usage: arcstat [-havxzp] [--2007] [--path DIR] [-f fields] [-o file] [-s string] [interval [count]]
	 -h : this text
	 -a : all fields
	 -v : list the fields and what they mean
	 -x : extended fields
	 -z : the prefetcher's fields
	 -f : fields, separated by commas
	 -o : write to a file instead of standard output
	 -s : string between fields (default: two blanks)
	 -p : raw numbers, columns not padded
	 --2007 : fields and numbers of arcstat.pl, beginning with the sums since the start
	 --path : a directory such as /proc/spl/kstat/zfs instead of the daemon
";

const DEFAULT: &str = "time,read,ddread,ddh%,dmread,dmh%,pread,ph%,size,c,avail";
const EXTENDED: &str = "time,mfu,mru,mfug,mrug,unc,eskip,mtxmis,dread,pread,read";
const ZFETCH: &str = "time,ztotal,zhits,zahead,zpast,zmisses,zmax,zfuture,zstride,zissued,zactive";
const DEFAULT_2007: &str = "time,read,miss,miss%,dmis,dm%,pmis,pm%,mmis,mm%,arcsz,c";
const EXTENDED_2007: &str = "time,mfu,mru,mfug,mrug,eskip,mtxmis,rmis,dread,pread,read";

/// Lines between two headings if standard output is not a terminal.
const PAGE: usize = 20;

/// The format of lines.
pub(super) struct Style {
    fields: Vec<ArcField>,
    separator: String,
    raw: bool,
    classic: bool,
}

impl Style {
    /// The heading.
    pub(super) fn heading(&self) -> String {
        let cell = |f: &ArcField| {
            let name = if self.classic && f.unit == FieldUnit::Time { "Time" } else { &f.name };
            if self.raw { name.to_owned() } else { format!("{name:>w$}", w = f.width) }
        };
        self.fields.iter().map(cell).collect::<Vec<_>>().join(&self.separator)
    }

    /// A line; `clock` is the time of day.
    pub(super) fn line(&self, sample: &Sample<'_>, clock: &str) -> String {
        let exact = sample.seconds == 1.0;
        let cell = |f: &ArcField| {
            if f.unit == FieldUnit::Time {
                return format!("{clock:>w$}", w = if self.raw { 0 } else { f.width });
            }
            let value = sample.value(&f.name);
            match (self.raw, self.classic) {
                (true, _) => format!("{:.0}", value.trunc()),
                (_, true) => number::classic(value, f.width, f.unit.scale()),
                _ => number::pretty(value, f.width, f.unit.scale(), exact),
            }
        };
        self.fields.iter().map(cell).collect::<Vec<_>>().join(&self.separator)
    }
}

/// The fields of a list. `tier`: the cache has a second tier.
///
/// # Errors
/// The message for a field that does not exist, or that needs a second tier.
pub(super) fn select(list: &str, classic: bool, tier: bool) -> Result<Vec<ArcField>> {
    let all = fields::all(classic);
    let mut out = Vec::new();
    let mut unknown = Vec::new();
    for name in list.split(',').map(str::trim) {
        match all.iter().find(|f| f.name == name) {
            // The column was narrower in 2007.
            Some(field) if classic && field.name == "c" => {
                out.push(ArcField { width: 4, ..field.clone() });
            }
            Some(field) => out.push(field.clone()),
            None => unknown.push(format!("'{}'", name.chars().take(40).collect::<String>())),
        }
    }
    if !unknown.is_empty() {
        let unknown = unknown.join(", ");
        return Err(Error::invalid(format!("Invalid column definition! -- [{unknown}]")));
    }
    let needs_tier = |f: &ArcField| f.name.starts_with("l2") && !f.name.starts_with("l2hsz");
    if !tier && out.iter().any(needs_tier) {
        return Err(Error::invalid("Incompatible field specified! There is no L2ARC."));
    }
    Ok(out)
}

fn lists_fields() -> Exit {
    let mut all = fields::all(false);
    all.sort_by(|a, b| a.name.cmp(&b.name));
    ui::err("Field definitions are as follows:");
    for field in all {
        ui::err(&format!("{:>11} : {}", field.name, field.what));
    }
    Exit::OK
}

fn style(parsed: &Parsed, classic: bool, arcstats: &Kstat) -> Result<Style> {
    let counter = |name: &str| arcstats.number(name).unwrap_or(0);
    let tier = counter("l2_size") > 0 || counter("l2_ndev") > 0;
    let all = || {
        let all = fields::all(false).into_iter().map(|f| f.name);
        let fit = all.filter(|n| tier || !n.starts_with("l2") || n.starts_with("l2hsz"));
        fit.collect::<Vec<_>>().join(",")
    };
    let list = match parsed.last('f') {
        Some(list) => list,
        None if parsed.has('a') => all(),
        None if parsed.has('z') => ZFETCH.to_owned(),
        None if parsed.has('x') && classic => EXTENDED_2007.to_owned(),
        None if parsed.has('x') => EXTENDED.to_owned(),
        None if classic => DEFAULT_2007.to_owned(),
        None => DEFAULT.to_owned(),
    };
    Ok(Style {
        fields: select(&list, classic, tier)?,
        separator: parsed.last('s').unwrap_or_else(|| "  ".to_owned()),
        raw: parsed.has('p'),
        classic,
    })
}

/// Lines of the terminal, minus the heading's.
fn page() -> usize {
    ui::rows().map_or(PAGE, |rows| rows - 3)
}

fn read(source: &mut StatSource) -> Result<(Kstat, Kstat)> {
    let zfetch = source.get("zfetchstats")?.unwrap_or_else(|| Kstat::numbers([]));
    Ok((source.arcstats()?, zfetch))
}

/// `arcstat`; `classic` if it was called by its name of 2007.
///
/// # Errors
/// No statistics can be had, or a field does not exist.
pub(super) fn main(argv: &[OsString], classic: bool) -> Result<Exit> {
    let parsed = match commands::find("cenote", "arcstat").parse(argv) {
        Ok(parsed) if !parsed.has('h') => parsed,
        Ok(_) => return Ok(super::usage(&Bad::Help, USAGE, Exit::OK)),
        Err(bad) => return Ok(super::usage(&bad, USAGE, Exit::FAILURE)),
    };
    if parsed.has('v') {
        return Ok(lists_fields());
    }
    let classic = classic || parsed.has('7');
    let (interval, count) = super::interval(&parsed.words())?;
    let mut source = StatSource::open(parsed.last('P'))?;
    let first = read(&mut source)?;
    let style = style(&parsed, classic, &first.0)?;
    let mut file = match parsed.last('o') {
        Some(path) => Some(
            std::fs::File::create(&path)
                .map_err(|e| Error::io("cannot open the output file", e).on_path(path))?,
        ),
        None => None,
    };
    let mut print = |line: &str| match &mut file {
        Some(file) => {
            writeln!(file, "{line}").map_err(|e| Error::io("cannot write the output file", e))
        }
        None => {
            ui::out(&format!("{line}\n"));
            Ok(())
        }
    };
    run(&mut source, first, &style, interval, count, &mut print)
}

fn run(
    source: &mut StatSource,
    first: (Kstat, Kstat),
    style: &Style,
    interval: Option<Duration>,
    count: Option<u64>,
    print: &mut dyn FnMut(&str) -> Result<()>,
) -> Result<Exit> {
    let seconds = interval.map_or(1.0, |i| i.as_secs_f64());
    // The first line of the present tool covers the time since the command began; that of 2007
    // all time before.
    let mut before = if style.classic { None } else { Some(first) };
    let last = if interval.is_some() { count.unwrap_or(u64::MAX) } else { 1 };
    let page = page() as u64;
    let begin = rt::now();
    for done in 0..last {
        if done % page == 0 {
            print(&style.heading())?;
        }
        let now = read(source)?;
        let clock = time::strftime("%H:%M:%S", rt::wall_clock().as_secs());
        let seconds = if before.is_none() { 1.0 } else { seconds };
        let sample = Sample { before: before.as_ref(), now: &now, seconds };
        print(&style.line(&sample, &clock))?;
        before = Some(now);
        if done + 1 < last {
            // Waits for fixed times, so that slow reading does not add up.
            let due = (done + 1) as f64 * interval.map_or(1.0, |i| i.as_secs_f64());
            let passed = begin.elapsed().as_secs_f64();
            rt::sleep(Duration::from_secs_f64((due - passed).max(0.0)));
        }
    }
    Ok(Exit::OK)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn style(list: &str, classic: bool) -> Style {
        let fields = select(list, classic, true).unwrap();
        Style { fields, separator: "  ".into(), raw: false, classic }
    }

    /// Chapter 09 §7.1, golden.
    #[test]
    fn headings() {
        assert_eq!(
            style(DEFAULT, false).heading(),
            "    time  read  ddread  ddh%  dmread  dmh%  pread  ph%   size      c  avail"
        );
        assert_eq!(
            style(EXTENDED, false).heading(),
            "    time   mfu   mru  mfug  mrug   unc  eskip  mtxmis  dread  pread  read"
        );
        assert_eq!(
            style(ZFETCH, false).heading(),
            "    time  ztotal  zhits  zahead  zpast  zmisses  zmax  zfuture  zstride  zissued  zactive"
        );
        assert_eq!(
            style(DEFAULT_2007, true).heading(),
            "    Time  read  miss  miss%  dmis  dm%  pmis  pm%  mmis  mm%  arcsz     c"
        );
    }

    /// Chapter 09 §7.1: the output in the manual page of 2007.
    #[test]
    fn the_line_of_2007() {
        let gib = |n: u64| n << 30;
        let arc = Kstat::numbers([
            ("hits", 885_000_000),
            ("misses", 100_500_000),
            ("demand_data_hits", 270_000_000),
            ("demand_data_misses", 46_000_000),
            ("demand_metadata_hits", 10_000_000),
            ("demand_metadata_misses", 1_400_000),
            ("prefetch_data_hits", 550_000_000),
            ("prefetch_data_misses", 53_000_000),
            ("prefetch_metadata_hits", 45_000_000),
            ("prefetch_metadata_misses", 400_000),
            ("size", gib(11)),
            ("c", gib(11) + 5),
        ]);
        let now = (arc, Kstat::numbers([]));
        let sample = Sample { before: None, now: &now, seconds: 1.0 };
        assert_eq!(
            style(DEFAULT_2007, true).line(&sample, "18:15:21"),
            "18:15:21  985M  100M     10   47M   14   53M    8    1M    3    11G   11G"
        );
    }

    #[test]
    fn fields_are_checked() {
        let told = |list| select(list, false, false).unwrap_err().message().to_owned();
        assert_eq!(told("time,nope,read,x"), "Invalid column definition! -- ['nope', 'x']");
        assert!(told("l2hits").starts_with("Incompatible field specified!"));
        assert_eq!(select("l2hsz,l2hsz%", false, false).unwrap().len(), 2);
        assert!(select("rmis", false, true).is_err() && select("rmis", true, true).is_ok());
    }

    #[test]
    fn raw_numbers_are_not_padded() {
        let now = (Kstat::numbers([("size", 17_179_869_184)]), Kstat::numbers([]));
        let sample = Sample { before: None, now: &now, seconds: 1.0 };
        let raw = Style { raw: true, separator: ",".into(), ..style("time,size,hit%", false) };
        assert_eq!(raw.heading(), "time,size,hit%");
        assert_eq!(raw.line(&sample, "1:00:00"), "1:00:00,17179869184,0");
        let padded = style("size", false);
        assert_eq!(padded.line(&sample, ""), "  16G");
    }
}
