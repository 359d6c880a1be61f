//! A session: a file system, its mount, and the threads between them and the kernel.
//!
//! # Theory
//! Each receiving thread takes a request from its channel and answers it in place if it
//! can do so from memory (see [`Placement`]). What may sleep it serves itself all the same,
//! as long as enough other threads receive: handing a request over costs as much as many
//! an operation. Only when all but a few threads sleep already do the workers get it. Where
//! nothing else comes over a channel before the answer went back, its thread always stays.
//! The inbox is laid out so that the data of a WRITE begin on a page: they are passed on in
//! it, uncopied, and the thread takes a new one if it is not free when they were served.
//! Only what is small and goes to a worker is copied.
//!
//! # Invariants
//! * Of the threads that share what comes, [`RESERVE`] for each core at least sleep for
//!   nobody: they call the file system in [`Mode::NonBlocking`], or for operations placed
//!   [`Placement::Inline`], forgets and interrupts.
//! * `init` comes before every other call, `destroy` after all of them.
//!
//! Lock order: `receivers`, a leaf lock.

use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use base::rt::{JoinHandle, Mutex};
use base::{Buf, BufMut, Error, Result};

use crate::abi::request::{self, Malformed, Op, Opcode, Proto};
use crate::abi::structs::{InHeader, InitIn, InitOut, OutHeader, WriteIn};
use crate::abi::{Wire, consts};
use crate::awake::Awake;
use crate::config::{Config, max_pages_limit};
use crate::dispatch::{Call, run, send};
use crate::errno::Errno;
use crate::fs::{Filesystem, Mode, Negotiated, Placement, Request, has_mode};
use crate::mount::{Mount, MountOptions, UnmountOptions, set_readahead};
use crate::notify::Notifier;
use crate::pool::{Limits, Pool};
use crate::transport::{Channel, DevChannel, DevTransport, Transport};

/// Bytes before the data of a WRITE.
const WRITE_HEAD: usize = InHeader::SIZE + WriteIn::SIZE;
/// Where write data lie in the inbox: on a page.
const DATA_AT: usize = 4096;
const INBOX_AT: usize = DATA_AT - WRITE_HEAD;
/// Opcodes are below this.
const OPCODES: usize = 64;
/// Receiving threads for each core that never sleep.
const RESERVE: usize = 1;
/// Receiving threads beside them by default.
const SLEEPERS: usize = 8;

/// A mounted file system being served.
///
/// Dropping it unmounts lazily; [`Session::unmount`] and [`Session::join`] do it
/// in order.
pub struct Session {
    core: Arc<Core>,
    mount: Option<Mount>,
    notifier: Notifier,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("mount", &self.mount).finish_non_exhaustive()
    }
}

struct Core {
    fs: Arc<dyn Filesystem>,
    negotiated: Negotiated,
    proto: Proto,
    placements: [Placement; OPCODES],
    pool: Pool,
    awake: Option<Arc<Awake>>,
    /// Threads that receive, and their handles until somebody joins them.
    receiving: AtomicUsize,
    receivers: Mutex<Vec<JoinHandle<()>>>,
    /// Receiving threads that serve what may sleep, and how many may.
    sleeping: AtomicUsize,
    sleepers_max: usize,
    ended: AtomicBool,
}

/// A receiving thread that may sleep; drop ends that.
struct Sleeper<'a>(&'a AtomicUsize);

/// Who serves what may sleep.
enum Place<'a> {
    /// The receiving thread, with leave where others share its channel.
    Here(Option<Sleeper<'a>>),
    Worker,
}

impl Drop for Sleeper<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Session {
    /// Mounts `fs` at a directory and serves it.
    ///
    /// # Errors
    /// When it cannot be mounted, or the kernel's protocol is older than 7.31.
    pub fn mount(
        fs: Arc<dyn Filesystem>,
        point: &Path,
        options: &MountOptions,
        config: &Config,
    ) -> Result<Session> {
        Session::mount_by(fs, point, options, config, &DevTransport)
    }

    /// The same over a transport of choice.
    ///
    /// # Errors
    /// As [`Session::mount`].
    pub fn mount_by(
        fs: Arc<dyn Filesystem>,
        point: &Path,
        options: &MountOptions,
        config: &Config,
        transport: &dyn Transport,
    ) -> Result<Session> {
        let (mount, device) = Mount::make(point, options)?;
        match Session::start(fs, device, config, transport) {
            Ok(mut session) => {
                if let Some(device) = mount.device() {
                    set_readahead(device, config.max_readahead);
                }
                session.mount = Some(mount);
                Ok(session)
            }
            Err(e) => {
                let _secondary = mount.unmount(UnmountOptions { lazy: true, force: false });
                Err(e)
            }
        }
    }

    /// Serves a connection that someone else mounted: `device` is an open
    /// `/dev/fuse` whose INIT is not yet answered. Whoever mounted it unmounts it.
    ///
    /// # Errors
    /// As [`Session::mount`].
    pub fn start(
        fs: Arc<dyn Filesystem>,
        device: OwnedFd,
        config: &Config,
        transport: &dyn Transport,
    ) -> Result<Session> {
        let control = DevChannel::new(device);
        let negotiated = handshake(&control, config, transport.init_flags())?;
        let count = match config.receivers {
            0 => RESERVE * base::rt::parallelism() + SLEEPERS,
            n => n,
        };
        let channels = transport.channels(control.into_fd(), count, &negotiated)?;
        let first = channels.first().ok_or_else(|| Error::bug("a transport without channels"))?;
        let notifier = Notifier { channel: Arc::clone(first), negotiated };
        let core = Arc::new(Core::new(fs, negotiated, config, channels.len()));
        core.fs.init(&negotiated);
        let mut first = true;
        for channel in channels {
            match core.start(channel, false) {
                Err(e) if first => return Err(e),
                // Fewer threads serve as well, only slower.
                _ => first = false,
            }
        }
        Ok(Session { core, mount: None, notifier })
    }

    /// What was agreed with the kernel.
    pub fn negotiated(&self) -> &Negotiated {
        &self.core.negotiated
    }

    /// Sends notifications to the kernel.
    pub fn notifier(&self) -> Notifier {
        self.notifier.clone()
    }

    /// Where it is mounted, if this session mounted it.
    pub fn mount_point(&self) -> Option<&Path> {
        self.mount.as_ref().map(Mount::path)
    }

    /// Whether requests are still served.
    pub fn is_running(&self) -> bool {
        !self.core.ended.load(Ordering::Acquire)
    }

    /// Unmounts. The session ends once the kernel has let go: at once, or with
    /// `lazy` when the last user is gone.
    ///
    /// # Errors
    /// `Busy` when it is in use; `NotFound` when it is not mounted any more, or
    /// was not by this session.
    pub fn unmount(&self, options: UnmountOptions) -> Result<()> {
        match &self.mount {
            Some(mount) => mount.unmount(options),
            None => Err(Error::not_found("this session did not mount anything")),
        }
    }

    /// Whether the kernel lets go of it within `time`, after it was unmounted. It does not
    /// while it shows elsewhere: bound to another directory, or in another name space.
    pub fn ends_within(&self, time: std::time::Duration) -> bool {
        let start = base::rt::now();
        while self.core.receiving.load(Ordering::Acquire) > 0 {
            let elsewhere = self.mount.as_ref().is_some_and(|m| !m.elsewhere().is_empty());
            if elsewhere || start.elapsed() > time {
                return false;
            }
            base::rt::sleep(std::time::Duration::from_millis(5));
        }
        true
    }

    /// Ends the connection, wherever the mount still shows; what is open there fails.
    pub fn cut(&self) {
        if let Some(mount) = &self.mount {
            mount.cut();
        }
    }

    /// Changes whether the mount is read-only, and its `nosuid`, `nodev`, `noexec` and
    /// `noatime`; other options stay. Only root can.
    ///
    /// # Errors
    /// `Busy` when it becomes read-only while files are open for writing; `NotFound` as
    /// for [`Session::unmount`]; the kernel's refusal.
    pub fn remount(&self, options: &MountOptions) -> Result<()> {
        match &self.mount {
            Some(mount) => mount.remount(options),
            None => Err(Error::not_found("this session did not mount anything")),
        }
    }

    /// Waits for the session's end: after unmount every request has been
    /// finished and `destroy` called.
    pub fn join(&self) {
        // Who still receives may start others.
        loop {
            let receivers = std::mem::take(&mut *self.core.receivers.lock());
            if receivers.is_empty() {
                return;
            }
            for handle in receivers {
                handle.join();
            }
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.is_running()
            && let Some(mount) = &self.mount
        {
            let _gone = mount.unmount(UnmountOptions { lazy: true, force: false });
        }
    }
}

/// Answers INIT.
fn handshake(channel: &DevChannel, config: &Config, extra: u64) -> Result<Negotiated> {
    let mut inbox = vec![0; consts::MIN_READ_BUFFER];
    loop {
        let len = channel
            .receive(&mut inbox)
            .map_err(|e| Error::io("the kernel closed the FUSE connection before its start", e))?;
        let msg = inbox.get(..len).unwrap_or_default();
        let Ok((header, _, Op::Init(offer))) = request::parse(msg, Proto::default()) else {
            return Err(Error::unsupported("the FUSE connection does not begin with INIT"));
        };
        if offer.major > consts::KERNEL_VERSION {
            // The kernel comes again with our version.
            let reply = InitOut { major: consts::KERNEL_VERSION, ..Default::default() };
            answer_init(channel, header.unique, &reply)?;
            continue;
        }
        if too_old(&offer) {
            let out = OutHeader { len: 16, error: -Errno::EPROTO.raw(), unique: header.unique };
            let mut bytes = Vec::new();
            out.put(&mut bytes);
            let _refused = channel.reply(&[IoSlice::new(&bytes)]);
            return Err(Error::unsupported(format!(
                "the kernel speaks FUSE {}.{}; {}.{} (Linux 5.4) is the oldest supported",
                offer.major,
                offer.minor,
                consts::KERNEL_VERSION,
                consts::MINOR_MIN,
            )));
        }
        let (reply, negotiated) = config.negotiate(&offer, extra, max_pages_limit());
        answer_init(channel, header.unique, &reply)?;
        return Ok(negotiated);
    }
}

fn too_old(offer: &InitIn) -> bool {
    offer.major < consts::KERNEL_VERSION || offer.minor < consts::MINOR_MIN
}

fn answer_init(channel: &DevChannel, unique: u64, reply: &InitOut) -> Result<()> {
    let mut bytes = Vec::new();
    // Both sizes are constants far below 4 GiB.
    let len = (OutHeader::SIZE + InitOut::SIZE) as u32;
    OutHeader { len, error: 0, unique }.put(&mut bytes);
    reply.put(&mut bytes);
    channel
        .reply(&[IoSlice::new(&bytes)])
        .map_err(|e| Error::io("the kernel refused the answer to INIT", e))
}

impl Core {
    fn new(
        fs: Arc<dyn Filesystem>,
        negotiated: Negotiated,
        config: &Config,
        receiving: usize,
    ) -> Core {
        let mut placements = [Placement::Worker; OPCODES];
        for &op in Opcode::ALL {
            let wanted = fs.placement(op);
            if let Some(slot) = placements.get_mut(op as usize) {
                let two = wanted == Placement::TwoStep && !has_mode(op);
                *slot = if two { Placement::Worker } else { wanted };
            }
        }
        let pool = Pool::new(Limits {
            threads: config.workers.max(1),
            waiters: config.lock_waiters,
            requests: config.queue_requests.max(1),
            bytes: config.queue_bytes,
            on_thread: config.on_thread,
        });
        Core {
            fs,
            negotiated,
            proto: Proto { setxattr_ext: negotiated.flags & consts::SETXATTR_EXT != 0 },
            placements,
            pool,
            awake: config.awake.clone(),
            receiving: AtomicUsize::new(receiving),
            receivers: Mutex::default(),
            sleeping: AtomicUsize::new(0),
            sleepers_max: receiving.saturating_sub(RESERVE * base::rt::parallelism()),
            ended: AtomicBool::new(false),
        }
    }

    fn new_inbox(&self) -> BufMut {
        BufMut::alloc(DATA_AT + self.negotiated.max_transfer as usize)
    }

    /// Starts the thread of a channel that is counted in `receiving` already.
    fn start(self: &Arc<Self>, channel: Arc<dyn Channel>, further: bool) -> Result<()> {
        let core = Arc::clone(self);
        // Under the lock: who ends at once is listed all the same.
        let mut receivers = self.receivers.lock();
        match base::rt::spawn("fuse-receive", move || core.receive(&channel, further)) {
            Ok(handle) => receivers.push(handle),
            Err(e) => {
                drop(receivers);
                self.receiver_ended();
                return Err(e);
            }
        }
        Ok(())
    }

    /// A receiving thread's life. A `further` channel that never worked ends alone.
    fn receive(self: &Arc<Self>, channel: &Arc<dyn Channel>, further: bool) {
        self.pool.begin_thread();
        if let Some(awake) = &self.awake {
            awake.count_sleeps();
        }
        let mut inbox = self.new_inbox();
        let mut worked = !further;
        while let Ok(len) = channel.receive(inbox.get_mut(INBOX_AT..).unwrap_or_default()) {
            worked = true;
            let _served = self.awake.as_ref().map(|awake| awake.came());
            if let Some(more) = channel.more() {
                self.receiving.fetch_add(1, Ordering::AcqRel);
                let _served_by_fewer = self.start(more, true);
            }
            inbox = self.take(channel, inbox, len);
        }
        // Nobody waits for answers any more; other receivers may sleep for some.
        if worked {
            self.pool.close().into_iter().for_each(|unique| self.interrupt(unique));
        }
        self.receiver_ended();
    }

    fn interrupt(&self, unique: u64) {
        let _panicked = catch_unwind(AssertUnwindSafe(|| self.fs.interrupt(unique)));
    }

    fn receiver_ended(&self) {
        if self.receiving.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.end();
        }
    }

    /// The last receiving thread's last act.
    fn end(&self) {
        self.pool.join();
        let _panicked = catch_unwind(AssertUnwindSafe(|| self.fs.destroy()));
        self.ended.store(true, Ordering::Release);
    }

    /// Serves the request in `inbox` and returns a buffer for the next.
    fn take(self: &Arc<Self>, channel: &Arc<dyn Channel>, inbox: BufMut, len: usize) -> BufMut {
        let msg = inbox.get(INBOX_AT..INBOX_AT + len).unwrap_or_default();
        let (header, opcode, op) = match request::parse(msg, self.proto) {
            Ok(parsed) => parsed,
            Err(malformed) => {
                self.refuse(channel, malformed);
                return inbox;
            }
        };
        let req = request_of(&header);
        match op {
            Op::Forget(f) => self.forget(header.nodeid, f.nlookup),
            Op::BatchForget(list) => list.for_each(|f| self.forget(f.nodeid, f.nlookup)),
            Op::Interrupt(i) => {
                // No reply: `EAGAIN` would have the kernel ask again at once.
                if self.pool.interrupt(i.unique) {
                    self.interrupt(i.unique);
                }
            }
            Op::NotifyReply => {}
            Op::Write(arg) => return self.take_write(channel, inbox, len, &arg),
            Op::Setlkw(_) => self.hand_to_waiter(channel, &req, msg.to_vec()),
            op => self.take_plain(channel, &req, msg, Call { header, opcode, op, payload: None }),
        }
        inbox
    }

    fn take_plain(
        self: &Arc<Self>,
        channel: &Arc<dyn Channel>,
        req: &Request,
        msg: &[u8],
        call: Call<'_>,
    ) {
        let mode = match self.placement(call.opcode) {
            Placement::TwoStep if channel.is_shared() => Mode::NonBlocking,
            Placement::Inline => Mode::Blocking,
            _ => return self.serve(channel, req, msg, None),
        };
        match run(&*self.fs, req, call, mode) {
            Err(Errno::WOULD_BLOCK) if mode == Mode::NonBlocking => {
                self.serve(channel, req, msg, None);
            }
            outcome => send(&*self.fs, &**channel, req, outcome),
        }
    }

    /// A WRITE: its data are not copied where they are served here, or large.
    fn take_write(
        self: &Arc<Self>,
        channel: &Arc<dyn Channel>,
        inbox: BufMut,
        len: usize,
        arg: &WriteIn,
    ) -> BufMut {
        let msg = inbox.get(INBOX_AT..INBOX_AT + len).unwrap_or_default();
        let head = msg.get(..WRITE_HEAD).unwrap_or_default().to_vec();
        let Some(range) = request::write_data(len, arg) else {
            if let Some(header) = InHeader::take(&mut &head[..]) {
                self.refuse(channel, Malformed::Body(header));
            }
            return inbox;
        };
        let place = match self.placement(Opcode::Write) {
            Placement::Inline => Place::Here(None),
            _ => self.place(&**channel),
        };
        // Elsewhere a small write would hold on to a large buffer.
        let own = matches!(place, Place::Here(_)) || range.len() >= inbox.len() / 8;
        let (data, inbox) = if own {
            let whole = inbox.freeze();
            (whole.slice(range.start + INBOX_AT..range.end + INBOX_AT), Err(whole))
        } else {
            (Buf::copy_of(msg.get(range).unwrap_or_default()), Ok(inbox))
        };
        self.serve_write(channel, place, head, data);
        match inbox {
            Ok(inbox) => inbox,
            // Who served it here is done, and the buffer ours again, if nobody kept a part.
            Err(whole) => whole.try_unfreeze().unwrap_or_else(|_| self.new_inbox()),
        }
    }

    fn serve_write(
        self: &Arc<Self>,
        channel: &Arc<dyn Channel>,
        place: Place<'_>,
        head: Vec<u8>,
        data: Buf,
    ) {
        let Ok((header, opcode, op)) = request::parse_headless(&head, self.proto) else {
            return;
        };
        let req = request_of(&header);
        if self.placement(opcode) == Placement::Inline {
            let call = Call { header, opcode, op, payload: Some(data) };
            let outcome = run(&*self.fs, &req, call, Mode::Blocking);
            send(&*self.fs, &**channel, &req, outcome);
        } else {
            self.serve_at(place, channel, &req, &head, Some(data));
        }
    }

    fn placement(&self, op: Opcode) -> Placement {
        self.placements.get(op as usize).copied().unwrap_or(Placement::Worker)
    }

    /// Serves what may sleep.
    fn serve(
        self: &Arc<Self>,
        channel: &Arc<dyn Channel>,
        req: &Request,
        msg: &[u8],
        data: Option<Buf>,
    ) {
        let place = self.place(&**channel);
        self.serve_at(place, channel, req, msg, data);
    }

    fn serve_at(
        self: &Arc<Self>,
        place: Place<'_>,
        channel: &Arc<dyn Channel>,
        req: &Request,
        msg: &[u8],
        data: Option<Buf>,
    ) {
        let Place::Here(_sleeper) = place else {
            return self.hand_over(channel, req, msg.to_vec(), data);
        };
        let cancel = self.pool.begin(req.unique);
        self.work(&**channel, msg, data, &cancel);
        self.pool.ended(req.unique);
    }

    /// Where a request of the channel is served that may sleep.
    fn place(&self, channel: &dyn Channel) -> Place<'_> {
        if !channel.is_shared() {
            return Place::Here(None);
        }
        self.sleeper().map_or(Place::Worker, |leave| Place::Here(Some(leave)))
    }

    /// Leave to sleep, unless too many do.
    fn sleeper(&self) -> Option<Sleeper<'_>> {
        let before = self.sleeping.fetch_add(1, Ordering::AcqRel);
        let leave = Sleeper(&self.sleeping);
        (before < self.sleepers_max).then_some(leave)
    }

    /// Gives a request to the workers.
    fn hand_over(
        self: &Arc<Self>,
        channel: &Arc<dyn Channel>,
        req: &Request,
        msg: Vec<u8>,
        data: Option<Buf>,
    ) {
        let bytes = msg.len() + data.as_ref().map_or(0, Buf::footprint);
        let (core, channel) = (Arc::clone(self), Arc::clone(channel));
        let task = move |cancel: &Arc<AtomicBool>| core.work(&*channel, &msg, data, cancel);
        self.pool.submit(req.unique, bytes, Box::new(task));
    }

    fn hand_to_waiter(self: &Arc<Self>, channel: &Arc<dyn Channel>, req: &Request, msg: Vec<u8>) {
        let (core, back) = (Arc::clone(self), Arc::clone(channel));
        let task = move |cancel: &Arc<AtomicBool>| core.work(&*back, &msg, None, cancel);
        if self.pool.submit_waiter(req.unique, Box::new(task)).is_err() {
            send(&*self.fs, &**channel, req, Err(Errno::ENOLCK));
        }
    }

    /// A request on a worker.
    fn work(&self, channel: &dyn Channel, msg: &[u8], data: Option<Buf>, cancel: &Arc<AtomicBool>) {
        let Ok((header, opcode, op)) = request::parse_headless(msg, self.proto) else {
            return;
        };
        let req = Request { cancel: Some(Arc::clone(cancel)), ..request_of(&header) };
        let call = Call { header, opcode, op, payload: data };
        let outcome = run(&*self.fs, &req, call, Mode::Blocking);
        send(&*self.fs, channel, &req, outcome);
    }

    fn forget(&self, node: u64, count: u64) {
        let _panicked = catch_unwind(AssertUnwindSafe(|| self.fs.forget(node, count)));
    }

    fn refuse(&self, channel: &Arc<dyn Channel>, malformed: Malformed) {
        let (header, errno) = match malformed {
            Malformed::Header => return,
            Malformed::Body(header) => (header, Errno::EINVAL),
            Malformed::Unknown(header) => (header, Errno::ENOSYS),
        };
        let silent = [Opcode::Forget, Opcode::BatchForget, Opcode::Interrupt, Opcode::NotifyReply];
        if !silent.iter().any(|&op| op as u32 == header.opcode) {
            send(&*self.fs, &**channel, &request_of(&header), Err(errno));
        }
    }
}

fn request_of(header: &InHeader) -> Request {
    Request {
        unique: header.unique,
        uid: header.uid,
        gid: header.gid,
        pid: header.pid,
        cancel: None,
    }
}
