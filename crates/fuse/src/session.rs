//! A session: a file system, its mount, and its connection to the kernel.
//!
//! # Theory
//! The [receiving threads](crate::receivers) of the process, and the threads of the
//! transport's own queues, take the session's requests and serve them in place. A message is
//! parsed once. An operation that takes a [`BlockingMode`] is first tried from memory, and called
//! again when it would block; the thread that then sleeps is replaced. The inbox is laid out
//! so that the data of a WRITE begin on a page: they are passed on without a copy, and the
//! thread takes a new inbox if the file system keeps the data.
//!
//! At most [`Config::concurrency`] requests are served at once: beyond that the session reads
//! no requests, and the kernel's callers wait. Waits for locks do not count, and have
//! threads of their own.
//!
//! # Invariants
//! * Each request that wants an answer becomes an [`Unanswered`] value when it is parsed.
//! * `init` precedes every other call and `destroy` follows all of them: `users` counts the
//!   threads that may still call, and the last one to leave calls `destroy`.
//! * A session that was full is armed when one of its requests has ended.
//!
//! Lock order: `queues` and `ended`, leaf locks.

use std::io::IoSlice;
use std::ops::Deref;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use base::rt::{Condvar, JoinHandle, Mutex};
use base::{BufMut, Error, Result};

use crate::abi::request::{self, Malformed, Opcode, Proto, RequestBody};
use crate::abi::structs::{InHeader, InitIn, InitOut, LkIn, OutHeader, WriteIn};
use crate::abi::{Wire, consts};
use crate::config::{Config, max_pages_limit};
use crate::dispatch::{Call, Unanswered, run};
use crate::errno::Errno;
use crate::fs::{BlockingMode, Filesystem, Negotiated, Request, has_mode};
use crate::holders::Holder;
use crate::inflight::Inflight;
use crate::latency::CpuLatencyQos;
use crate::mount::{Kept, Mount, MountOptions, UnmountOptions, set_readahead};
use crate::notify::Notifier;
use crate::receivers::{ReadOutcome, Receivers, RequestSource};
use crate::transport::{Channel, DevTransport, FuseDevice, Queue, Transport};

/// Bytes before the data of a WRITE.
const WRITE_HEAD: usize = InHeader::SIZE + WriteIn::SIZE;
/// Where write data lie in the inbox: on a page.
const DATA_AT: usize = 4096;
const INBOX_AT: usize = DATA_AT - WRITE_HEAD;

/// A mounted file system being served.
///
/// Dropping it unmounts lazily; [`Session::unmount`] and [`Session::join`] do it
/// in order.
pub struct Session {
    core: Arc<SessionCore>,
    mount: Option<Mount>,
    notifier: Notifier,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("mount", &self.mount).finish_non_exhaustive()
    }
}

struct SessionCore {
    fs: Arc<dyn Filesystem>,
    device: Arc<FuseDevice>,
    negotiated: Negotiated,
    proto: Proto,
    inflight: Inflight,
    latency_qos: Option<Arc<CpuLatencyQos>>,
    /// The device until it is gone, requests and waits for locks being served, and
    /// threads of queues.
    users: AtomicUsize,
    /// Users without a limit: waits for locks and threads of queues.
    exempt: AtomicUsize,
    waiters: AtomicUsize,
    /// Most users that are not exempt, the device included; most waits for locks.
    users_max: usize,
    waiters_max: usize,
    /// A thread found the session full: the next end of a request must arm it.
    held_back: AtomicBool,
    queues: Mutex<Vec<JoinHandle<()>>>,
    ended: Mutex<bool>,
    end: Condvar,
}

/// A use of a session, which ends with the last of them.
struct User<'a> {
    core: &'a SessionCore,
    exempt: bool,
}

impl Drop for User<'_> {
    fn drop(&mut self) {
        if self.exempt {
            self.core.exempt.fetch_sub(1, Ordering::AcqRel);
        }
        if self.core.users.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.core.finish();
        }
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

    /// Serves a connection that the caller mounted: `device` is an open `/dev/fuse` whose
    /// INIT is not yet answered. The caller unmounts it.
    ///
    /// # Errors
    /// As [`Session::mount`].
    pub fn start(
        fs: Arc<dyn Filesystem>,
        device: OwnedFd,
        config: &Config,
        transport: &dyn Transport,
    ) -> Result<Session> {
        let device = Arc::new(FuseDevice::new(device));
        let negotiated = handshake(&device, config, transport.init_flags())?;
        device.set_nonblocking()?;
        let receivers = Receivers::of_process()?;
        let queues = transport.queues(device.fd(), &negotiated)?;
        let notifier = Notifier { channel: Arc::clone(&device) as _, negotiated, outward: None };
        let core = Arc::new(SessionCore::new(fs, device, negotiated, config));
        core.fs.init(&negotiated);
        receivers.attach(Arc::clone(&core) as _)?;
        for queue in queues {
            // Fewer threads serve as well, only slower.
            let _slower = core.start(queue, false);
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
    pub fn mount_point(&self) -> Option<PathBuf> {
        self.mount.as_ref().map(Mount::path)
    }

    /// Its device number, `major:minor`, if this session mounted it and the table of mounts
    /// told the number.
    pub fn device(&self) -> Option<&str> {
        self.mount.as_ref().and_then(Mount::device)
    }

    /// One process for each other mount namespace that shows the mount, of those that this
    /// process may look at.
    pub fn holders(&self) -> Vec<Holder> {
        self.mount.as_ref().map(Mount::holders).unwrap_or_default()
    }

    /// What can be shown again after [`Session::unmount`], as long as the session runs; it
    /// runs as long as this lives. `None` where that cannot be done: only root can.
    pub fn keep(&self) -> Option<Kept> {
        self.mount.as_ref().and_then(Mount::keep)
    }

    /// Mounts again, at a directory, what was kept.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn put_back(&self, kept: &Kept, point: &Path) -> Result<()> {
        match &self.mount {
            Some(mount) => mount.put_back(kept, point),
            None => Err(Error::not_found("this session did not mount anything")),
        }
    }

    /// Whether requests are still served.
    pub fn is_running(&self) -> bool {
        !*self.core.ended.lock()
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
    pub fn ends_within(&self, time: Duration) -> bool {
        const LOOK: Duration = Duration::from_millis(20);
        let start = base::rt::now();
        let mut ended = self.core.ended.lock();
        while !*ended {
            if start.elapsed() > time {
                return false;
            }
            if self.core.end.wait_timeout(&mut ended, LOOK) && !*ended {
                drop(ended);
                if self.mount.as_ref().is_some_and(|m| !m.elsewhere().is_empty()) {
                    return false;
                }
                ended = self.core.ended.lock();
            }
        }
        true
    }

    /// Ends the connection, wherever the mount still shows; what is open there fails.
    pub fn cut(&self) {
        if let Some(mount) = &self.mount {
            mount.cut();
        }
    }

    /// Where else it shows in this namespace, bound to other directories; and at its mount
    /// point, as long as it is mounted.
    pub fn elsewhere(&self) -> Vec<PathBuf> {
        self.mount.as_ref().map(Mount::elsewhere).unwrap_or_default()
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
        let mut ended = self.core.ended.lock();
        while !*ended {
            self.core.end.wait(&mut ended);
        }
        drop(ended);
        // None starts another one any more.
        for handle in std::mem::take(&mut *self.core.queues.lock()) {
            handle.join();
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
fn handshake(channel: &FuseDevice, config: &Config, extra: u64) -> Result<Negotiated> {
    let mut inbox = vec![0; consts::MIN_READ_BUFFER];
    loop {
        let len = channel
            .read(&mut inbox)
            .map_err(|e| Error::io("the kernel closed the FUSE connection before its start", e))?
            .unwrap_or(0);
        let msg = inbox.get(..len).unwrap_or_default();
        let Ok((header, _, RequestBody::Init(offer))) = request::parse(msg, Proto::default())
        else {
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

fn answer_init(channel: &FuseDevice, unique: u64, reply: &InitOut) -> Result<()> {
    let mut bytes = Vec::new();
    // Both sizes are constants far below 4 GiB.
    let len = (OutHeader::SIZE + InitOut::SIZE) as u32;
    OutHeader { len, error: 0, unique }.put(&mut bytes);
    reply.put(&mut bytes);
    channel
        .reply(&[IoSlice::new(&bytes)])
        .map_err(|e| Error::io("the kernel refused the answer to INIT", e))
}

impl RequestSource for SessionCore {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.device.descriptor()
    }

    fn fit(&self, inbox: &mut BufMut) {
        let size = self.inbox_size();
        if inbox.len() < size {
            *inbox = BufMut::alloc(size);
        }
    }

    fn take(&self, inbox: &mut BufMut, ended: bool) -> ReadOutcome {
        if !ended && self.is_full() {
            self.held_back.store(true, Ordering::SeqCst);
            // A request that ended meanwhile may not have seen it.
            if self.is_full() {
                return ReadOutcome::Full;
            }
        }
        // Counted before it is read: the session does not end between.
        let enter = |n: usize| (n > 0).then_some(n + 1);
        if self.users.fetch_update(Ordering::SeqCst, Ordering::SeqCst, enter).is_err() {
            return ReadOutcome::Gone;
        }
        let taken = match self.device.read(inbox.get_mut(INBOX_AT..).unwrap_or_default()) {
            Ok(Some(len)) => return ReadOutcome::Request(len),
            Ok(None) => ReadOutcome::Nothing,
            Err(_) => ReadOutcome::Gone,
        };
        drop(User { core: self, exempt: false });
        taken
    }

    fn serve(self: Arc<Self>, inbox: BufMut, len: usize) -> (BufMut, bool) {
        let user = User { core: &self, exempt: false };
        let served = self.latency_qos.as_ref().map(|qos| qos.begin());
        let channel = Arc::clone(&self.device) as Arc<dyn Channel>;
        let inbox = self.take_request(&channel, inbox, len);
        drop((served, user));
        let was_full =
            self.held_back.load(Ordering::SeqCst) && self.held_back.swap(false, Ordering::SeqCst);
        (inbox, was_full)
    }

    fn sleeps(&self) {
        if let Some(qos) = &self.latency_qos {
            qos.slept();
        }
    }

    fn gone(&self) {
        self.close();
        drop(User { core: self, exempt: false });
    }
}

impl SessionCore {
    fn new(
        fs: Arc<dyn Filesystem>,
        device: Arc<FuseDevice>,
        negotiated: Negotiated,
        config: &Config,
    ) -> SessionCore {
        SessionCore {
            fs,
            device,
            negotiated,
            proto: Proto { setxattr_ext: negotiated.flags & consts::SETXATTR_EXT != 0 },
            inflight: Inflight::default(),
            latency_qos: config.latency_qos.clone(),
            users: AtomicUsize::new(1),
            exempt: AtomicUsize::new(0),
            waiters: AtomicUsize::new(0),
            users_max: config.concurrency.max(1).saturating_add(1),
            waiters_max: config.lock_waiters,
            held_back: AtomicBool::new(false),
            queues: Mutex::default(),
            ended: Mutex::new(false),
            end: Condvar::new(),
        }
    }

    fn inbox_size(&self) -> usize {
        DATA_AT + self.negotiated.max_transfer as usize
    }

    fn is_full(&self) -> bool {
        let exempt = self.exempt.load(Ordering::SeqCst);
        self.users.load(Ordering::SeqCst).saturating_sub(exempt) >= self.users_max
    }

    /// A use that no limit counts, while another one lasts.
    fn use_exempt(&self) -> User<'_> {
        self.exempt.fetch_add(1, Ordering::AcqRel);
        self.users.fetch_add(1, Ordering::AcqRel);
        User { core: self, exempt: true }
    }

    /// Starts the thread of a queue. A `further` one that never worked ends alone.
    fn start(self: &Arc<Self>, queue: Arc<dyn Queue>, further: bool) -> Result<()> {
        let core = Arc::clone(self);
        let user = self.use_exempt();
        let started = base::rt::spawn("fuse-queue", move || core.receive(&queue, further))?;
        // The thread has it.
        std::mem::forget(user);
        self.queues.lock().push(started);
        Ok(())
    }

    /// The life of a queue's thread.
    fn receive(self: &Arc<Self>, queue: &Arc<dyn Queue>, further: bool) {
        let user = User { core: self, exempt: true };
        if let Some(qos) = &self.latency_qos {
            let qos = Arc::clone(qos);
            base::rt::before_sleep(move || qos.slept());
        }
        let channel = Arc::clone(queue) as Arc<dyn Channel>;
        let mut inbox = BufMut::alloc(self.inbox_size());
        let mut worked = !further;
        while let Ok(len) = queue.receive(inbox.get_mut(INBOX_AT..).unwrap_or_default()) {
            worked = true;
            let _served = self.latency_qos.as_ref().map(|qos| qos.begin());
            if let Some(more) = queue.more() {
                let _served_by_fewer = self.start(more, true);
            }
            inbox = self.take_request(&channel, inbox, len);
        }
        if worked {
            self.close();
        }
        drop(user);
    }

    /// The connection has ended: threads that sleep in a request are woken.
    fn close(&self) {
        self.inflight.close().into_iter().for_each(|unique| self.interrupt(unique));
    }

    fn interrupt(&self, unique: u64) {
        let _panicked = catch_unwind(AssertUnwindSafe(|| self.fs.interrupt(unique)));
    }

    /// What the last user does last.
    fn finish(&self) {
        let _panicked = catch_unwind(AssertUnwindSafe(|| self.fs.destroy()));
        *self.ended.lock() = true;
        self.end.notify_all();
    }

    /// Serves the request in `inbox` and returns a buffer for the next.
    fn take_request(
        self: &Arc<Self>,
        channel: &Arc<dyn Channel>,
        inbox: BufMut,
        len: usize,
    ) -> BufMut {
        let msg = inbox.get(INBOX_AT..INBOX_AT + len).unwrap_or_default();
        let (header, opcode, body) = match request::parse(msg, self.proto) {
            Ok(parsed) => parsed,
            Err(malformed) => {
                refuse(&**channel, malformed);
                return inbox;
            }
        };
        match body {
            // The kernel waits for no answer to these.
            RequestBody::Forget(f) => self.forget(header.nodeid, f.nlookup),
            RequestBody::BatchForget(list) => {
                list.iter().for_each(|f| self.forget(f.nodeid, f.nlookup));
            }
            RequestBody::Interrupt(i) => {
                // No reply: after `EAGAIN` the kernel would send it again at once.
                if self.inflight.interrupt(i.unique) {
                    self.interrupt(i.unique);
                }
            }
            RequestBody::NotifyReply => {}
            RequestBody::Write(arg) => {
                let unanswered = Unanswered::new(&**channel, header.unique);
                return self.serve_write(unanswered, header, &arg, inbox, len);
            }
            RequestBody::Setlkw(arg) => {
                let unanswered = Unanswered::new(Arc::clone(channel), header.unique);
                self.hand_to_waiter(unanswered, header, arg);
            }
            body => {
                let unanswered = Unanswered::new(&**channel, header.unique);
                self.serve_call(unanswered, Call { header, opcode, body, payload: None });
            }
        }
        inbox
    }

    /// Serves a request: from memory if its operation takes a mode, else, or if that would
    /// block, with a thread that may sleep.
    fn serve_call(&self, unanswered: Unanswered<&(dyn Channel + 'static)>, call: Call<'_>) {
        if has_mode(call.opcode) {
            let req = request_of(&call.header);
            let outcome = run(&*self.fs, &req, call.clone(), BlockingMode::NonBlocking);
            if !matches!(outcome, Err(Errno::WOULD_BLOCK)) {
                return unanswered.answer(&*self.fs, &req, outcome);
            }
        }
        self.serve_blocking(unanswered, call);
    }

    /// Serves a WRITE, whose data are not copied.
    fn serve_write(
        &self,
        unanswered: Unanswered<&(dyn Channel + 'static)>,
        header: InHeader,
        arg: &WriteIn,
        inbox: BufMut,
        len: usize,
    ) -> BufMut {
        let Some(range) = request::write_data(len, arg) else {
            unanswered.refuse(Errno::EINVAL);
            return inbox;
        };
        let whole = inbox.freeze();
        let payload = Some(whole.slice(range.start + INBOX_AT..range.end + INBOX_AT));
        let (opcode, body) = (Opcode::Write, RequestBody::Write(*arg));
        self.serve_blocking(unanswered, Call { header, opcode, body, payload });
        // The buffer is free again if the file system kept no part of it.
        whole.try_unfreeze().unwrap_or_else(|_| BufMut::alloc(self.inbox_size()))
    }

    /// Serves a request whose operation may sleep.
    fn serve_blocking<C>(&self, unanswered: Unanswered<C>, call: Call<'_>)
    where
        C: Deref<Target = dyn Channel>,
    {
        let cancel = self.inflight.begin(call.header.unique);
        let req = Request { cancel: Some(cancel), ..request_of(&call.header) };
        let outcome = run(&*self.fs, &req, call, BlockingMode::Blocking);
        unanswered.answer(&*self.fs, &req, outcome);
        self.inflight.end(req.unique);
    }

    /// Serves a wait for a lock on a thread of its own; `ENOLCK` if there are too many.
    fn hand_to_waiter(
        self: &Arc<Self>,
        unanswered: Unanswered<Arc<dyn Channel>>,
        header: InHeader,
        arg: LkIn,
    ) {
        let unanswered = unanswered.if_dropped(Errno::ENOLCK);
        if self.waiters.fetch_add(1, Ordering::AcqRel) >= self.waiters_max {
            self.waiters.fetch_sub(1, Ordering::AcqRel);
            return;
        }
        let user = self.use_exempt();
        let core = Arc::clone(self);
        let started = base::rt::spawn("fuse-lock", move || {
            let user = User { core: &core, exempt: true };
            let (opcode, body) = (Opcode::Setlkw, RequestBody::Setlkw(arg));
            let call = Call { header, opcode, body, payload: None };
            core.serve_blocking(unanswered.if_dropped(Errno::EIO), call);
            core.waiters.fetch_sub(1, Ordering::AcqRel);
            drop(user);
        });
        match started {
            // The thread ends the use.
            Ok(_) => std::mem::forget(user),
            Err(_) => {
                self.waiters.fetch_sub(1, Ordering::AcqRel);
                drop(user);
            }
        }
    }

    fn forget(&self, node: u64, count: u64) {
        let _panicked = catch_unwind(AssertUnwindSafe(|| self.fs.forget(node, count)));
    }
}

/// Answers a message that is not a request of this crate.
fn refuse(channel: &(dyn Channel + 'static), malformed: Malformed) {
    let (header, errno) = match malformed {
        Malformed::Header => return,
        Malformed::Body(header) => (header, Errno::EINVAL),
        Malformed::Unknown(header) => (header, Errno::ENOSYS),
    };
    let silent = [Opcode::Forget, Opcode::BatchForget, Opcode::Interrupt, Opcode::NotifyReply];
    if !silent.iter().any(|&op| op as u32 == header.opcode) {
        Unanswered::new(channel, header.unique).refuse(errno);
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
