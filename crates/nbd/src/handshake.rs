//! The handshake: options until an export is chosen.

use std::sync::Arc;

use base::ErrorKind;
use cenote::Volume;

use crate::Exports;
use crate::wire::{
    BASE_ALLOCATION, BASE_ALLOCATION_ID, Fields, NAME_MAX, OPTION_REPLY_MAGIC, PAYLOAD_MAX, export,
    info, opt, rep,
};

/// Smallest and preferred transfers that are announced, bytes.
const BLOCK_MIN: u32 = 1;
const BLOCK_PREFERRED_MIN: u64 = 4096;

/// The chosen export, and what was agreed.
pub(crate) struct Transmission {
    pub(crate) name: String,
    pub(crate) volume: Arc<Volume>,
    pub(crate) structured: bool,
    pub(crate) extended: bool,
    pub(crate) allocation: bool,
}

/// What an option leads to.
pub(crate) enum AfterOption {
    /// The next option.
    Continue,
    /// Requests.
    Go(Arc<Transmission>),
    /// The handshake of TLS, after the reply.
    StartTls,
    /// The end, after the reply.
    End,
}

/// What a connection is to TLS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Security {
    /// It goes without.
    #[default]
    Plain,
    /// It has to begin TLS.
    Required,
    /// It has TLS.
    Secured,
}

/// What was agreed so far.
#[derive(Debug, Default)]
pub(crate) struct Agreed {
    /// The old form of choosing an export has no zeros behind its answer.
    pub(crate) no_zeroes: bool,
    security: Security,
    structured: bool,
    extended: bool,
    /// The export for which `base:allocation` was chosen.
    allocation_of: Option<String>,
}

fn reply(out: &mut Vec<u8>, option: u32, kind: u32, data: &[u8]) {
    out.extend(OPTION_REPLY_MAGIC.to_be_bytes());
    out.extend(option.to_be_bytes());
    out.extend(kind.to_be_bytes());
    out.extend((data.len() as u32).to_be_bytes());
    out.extend(data);
}

fn refuse(out: &mut Vec<u8>, option: u32, kind: u32, why: &str) -> AfterOption {
    reply(out, option, kind, why.as_bytes());
    AfterOption::Continue
}

/// The flags of an export.
pub(crate) fn export_flags(volume: &Volume, structured: bool) -> u16 {
    let mut flags = export::HAS_FLAGS
        | export::SEND_FLUSH
        | export::SEND_FUA
        | export::CAN_MULTI_CONN
        | export::SEND_CACHE;
    flags |= match volume.is_writable() {
        true => export::SEND_TRIM | export::SEND_WRITE_ZEROES | export::SEND_FAST_ZERO,
        false => export::READ_ONLY,
    };
    if structured { flags | export::SEND_DF } else { flags }
}

fn text(bytes: &[u8]) -> Option<&str> {
    if bytes.len() > NAME_MAX { None } else { std::str::from_utf8(bytes).ok() }
}

impl Agreed {
    /// Nothing but what the client's flags say.
    pub(crate) fn new(security: Security, no_zeroes: bool) -> Agreed {
        Agreed { security, no_zeroes, ..Agreed::default() }
    }

    /// Performs an option. Its answer is appended to `out`.
    pub(crate) fn option(
        &mut self,
        exports: &dyn Exports,
        option: u32,
        data: &[u8],
        out: &mut Vec<u8>,
    ) -> AfterOption {
        match option {
            opt::EXPORT_NAME if self.security == Security::Required => AfterOption::End,
            opt::EXPORT_NAME => self.export_name(exports, data, out),
            opt::ABORT => {
                reply(out, option, rep::ACK, &[]);
                AfterOption::End
            }
            opt::STARTTLS => self.start_tls(data, out),
            _ if self.security == Security::Required => {
                refuse(out, option, rep::TLS_REQUIRED, "TLS is needed first")
            }
            opt::LIST => list(exports, data, out),
            opt::INFO | opt::GO => self.info(exports, option, data, out),
            opt::STRUCTURED_REPLY | opt::EXTENDED_HEADERS if !data.is_empty() => {
                refuse(out, option, rep::INVALID, "the option has no data")
            }
            opt::STRUCTURED_REPLY if self.extended => {
                refuse(out, option, rep::EXTENDED_REQUIRED, "headers are extended already")
            }
            opt::STRUCTURED_REPLY => {
                self.structured = true;
                reply(out, option, rep::ACK, &[]);
                AfterOption::Continue
            }
            opt::EXTENDED_HEADERS => {
                (self.structured, self.extended) = (true, true);
                reply(out, option, rep::ACK, &[]);
                AfterOption::Continue
            }
            opt::LIST_META_CONTEXT | opt::SET_META_CONTEXT => {
                self.contexts(exports, option, data, out)
            }
            _ => refuse(out, option, rep::UNSUPPORTED, "unknown option"),
        }
    }

    fn start_tls(&self, data: &[u8], out: &mut Vec<u8>) -> AfterOption {
        let (kind, why) = match self.security {
            _ if !data.is_empty() => (rep::INVALID, "the option has no data"),
            Security::Plain => (rep::POLICY, "TLS is not used here"),
            Security::Secured => (rep::INVALID, "TLS is in use already"),
            Security::Required => {
                reply(out, opt::STARTTLS, rep::ACK, &[]);
                return AfterOption::StartTls;
            }
        };
        refuse(out, opt::STARTTLS, kind, why)
    }

    fn transmission(&self, name: &str, volume: Arc<Volume>) -> Arc<Transmission> {
        Arc::new(Transmission {
            name: name.to_owned(),
            volume,
            structured: self.structured,
            extended: self.extended,
            allocation: self.allocation_of.as_deref() == Some(name),
        })
    }

    /// The old form has no answer for an export that does not exist.
    fn export_name(&self, exports: &dyn Exports, data: &[u8], out: &mut Vec<u8>) -> AfterOption {
        let opened = text(data).map(|name| (name, exports.open(name)));
        let Some((name, Ok(volume))) = opened else { return AfterOption::End };
        out.extend(volume.size().to_be_bytes());
        out.extend(export_flags(&volume, self.structured).to_be_bytes());
        if !self.no_zeroes {
            out.extend([0; 124]);
        }
        AfterOption::Go(self.transmission(name, volume))
    }

    fn info(
        &self,
        exports: &dyn Exports,
        option: u32,
        data: &[u8],
        out: &mut Vec<u8>,
    ) -> AfterOption {
        let mut fields = Fields(data);
        let parsed = fields.counted().and_then(text).zip(fields.u16());
        let wanted: Option<(&str, Vec<u16>)> = parsed.and_then(|(name, count)| {
            let list = (0..count).map(|_| fields.u16()).collect::<Option<_>>()?;
            fields.0.is_empty().then_some((name, list))
        });
        let Some((name, wanted)) = wanted else {
            return refuse(out, option, rep::INVALID, "malformed option");
        };
        let volume = match exports.open(name) {
            Ok(volume) => volume,
            Err(e) => return refused(out, option, &e),
        };
        let mut about = info::EXPORT.to_be_bytes().to_vec();
        about.extend(volume.size().to_be_bytes());
        about.extend(export_flags(&volume, self.structured).to_be_bytes());
        reply(out, option, rep::INFO, &about);
        if wanted.contains(&info::NAME) {
            let mut about = info::NAME.to_be_bytes().to_vec();
            about.extend(name.as_bytes());
            reply(out, option, rep::INFO, &about);
        }
        let block = volume.block_size().clamp(BLOCK_PREFERRED_MIN, u64::from(PAYLOAD_MAX));
        let mut about = info::BLOCK_SIZE.to_be_bytes().to_vec();
        about.extend(BLOCK_MIN.to_be_bytes());
        about.extend((block as u32).to_be_bytes());
        about.extend(PAYLOAD_MAX.to_be_bytes());
        reply(out, option, rep::INFO, &about);
        reply(out, option, rep::ACK, &[]);
        match option {
            opt::GO => AfterOption::Go(self.transmission(name, volume)),
            _ => AfterOption::Continue,
        }
    }

    fn contexts(
        &mut self,
        exports: &dyn Exports,
        option: u32,
        data: &[u8],
        out: &mut Vec<u8>,
    ) -> AfterOption {
        let sets = option == opt::SET_META_CONTEXT;
        if sets {
            self.allocation_of = None;
        }
        if !self.structured {
            return refuse(out, option, rep::INVALID, "structured replies are needed first");
        }
        let mut fields = Fields(data);
        let parsed = fields.counted().and_then(text).zip(fields.u32());
        let queries: Option<(&str, Vec<&[u8]>)> = parsed.and_then(|(name, count)| {
            // Each query takes four bytes at least.
            let fits = count as usize <= data.len() / 4;
            let list = fits.then(|| (0..count).map(|_| fields.counted()).collect::<Option<_>>());
            fields.0.is_empty().then_some((name, list.flatten()?))
        });
        let Some((name, queries)) = queries else {
            return refuse(out, option, rep::INVALID, "malformed option");
        };
        if let Err(e) = exports.open(name) {
            return refused(out, option, &e);
        }
        let all = !sets && (queries.is_empty() || queries.contains(&&b"base:"[..]));
        if all || queries.contains(&BASE_ALLOCATION) {
            let id = if sets { BASE_ALLOCATION_ID } else { 0 };
            let context = [&id.to_be_bytes()[..], BASE_ALLOCATION].concat();
            reply(out, option, rep::META_CONTEXT, &context);
            if sets {
                self.allocation_of = Some(name.to_owned());
            }
        }
        reply(out, option, rep::ACK, &[]);
        AfterOption::Continue
    }
}

fn refused(out: &mut Vec<u8>, option: u32, e: &base::Error) -> AfterOption {
    match e.kind() {
        ErrorKind::NotFound => refuse(out, option, rep::UNKNOWN, "no such export"),
        _ => refuse(out, option, rep::POLICY, &e.to_string()),
    }
}

fn list(exports: &dyn Exports, data: &[u8], out: &mut Vec<u8>) -> AfterOption {
    if !data.is_empty() {
        return refuse(out, opt::LIST, rep::INVALID, "the option has no data");
    }
    match exports.list() {
        Ok(all) => {
            for entry in all {
                let mut server = (entry.name.len() as u32).to_be_bytes().to_vec();
                server.extend(entry.name.as_bytes());
                server.extend(entry.description.as_bytes());
                reply(out, opt::LIST, rep::SERVER, &server);
            }
            reply(out, opt::LIST, rep::ACK, &[]);
            AfterOption::Continue
        }
        Err(e) => refused(out, opt::LIST, &e),
    }
}
