//! An open WebSocket: a command's streams go through it until the command ends or the client does.

use std::time::Duration;

use bytes::Bytes;
use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt as _, StreamExt as _};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tether_machinery::remote_command::{self, End, Input, InputError, Output, Protocol, Streams};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::time::{Interval, MissedTickBehavior};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::{Error, Message};

use super::logs::Reader;
use crate::container::exec::visit::{self, Terminal, Visit};
use crate::container::files::RunDir;

/// What is read of an output at once.
const CHUNK_BYTES: usize = 32 << 10;
/// How long an output may stay silent after the command has ended: something it left in the background keeps it open.
const DRAIN: Duration = Duration::from_millis(200);
/// A client that is gone is noticed by this when nothing else is sent, also while its input waits for the command to read.
const PING_INTERVAL: Duration = Duration::from_secs(5);
/// For a client to read the end and close its side: a connection that is torn down at once may lose what was sent last.
const LINGER: Duration = Duration::from_secs(5);

type Socket = WebSocketStream<TokioIo<Upgraded>>;
type Out = SplitSink<Socket, Message>;

/// What is done over the WebSocket.
#[derive(Debug)]
pub(super) enum Task {
    Exec { run: RunDir, argv: Vec<String>, streams: Streams },
    Attach { run: RunDir, streams: Streams },
}

/// Why a session ended before its command did.
#[derive(Debug, thiserror::Error)]
enum Gone {
    #[error("the client is gone")]
    Client,
    #[error(transparent)]
    Socket(#[from] Error),
    #[error(transparent)]
    Message(#[from] InputError),
}

/// Does it, and says how it ended.
pub(super) async fn run(socket: Socket, protocol: Protocol, task: Task) {
    let (mut out, mut input) = socket.split();
    let done = match task {
        Task::Exec { run, argv, streams } => match visit::begin(&run, argv, streams).await {
            Ok(visit) => exec(&mut out, &mut input, visit, protocol, streams).await,
            Err(error) => Ok(End::Failed(error.to_string())),
        },
        Task::Attach { run, streams } => attach(&mut out, &mut input, run, protocol, streams).await,
    };
    match done {
        Ok(end) => close(out, input, &end).await,
        Err(Gone::Message(error)) => {
            let frame = CloseFrame { code: CloseCode::Unsupported, reason: error.to_string().into() };
            let _ = out.send(Message::Close(Some(frame))).await;
        }
        Err(error) => tracing::debug!(%error, "a session ended before its command"),
    }
}

/// Says how it ended and waits until the client has heard it.
async fn close(mut out: Out, mut input: SplitStream<Socket>, end: &End) {
    let status = end.status().to_string();
    let frame = CloseFrame { code: CloseCode::Normal, reason: "".into() };
    let told = async {
        out.send(Message::binary(Output::End.message(status.as_bytes()))).await?;
        out.send(Message::Close(Some(frame))).await?;
        while let Some(Ok(_)) = input.next().await {}
        Ok::<_, Error>(())
    };
    let _ = tokio::time::timeout(LINGER, told).await;
}

async fn exec(
    out: &mut Out,
    input: &mut SplitStream<Socket>,
    visit: Visit,
    protocol: Protocol,
    streams: Streams,
) -> Result<End, Gone> {
    let Visit { stdin, stdout, stderr, terminal, mut end } = visit;
    let mut outputs = Outputs { stdout: Source(stdout), stderr: Source(stderr) };
    let code = tokio::select! {
        gone = listen(input, protocol, streams, stdin, terminal.as_ref()) => return Err(gone),
        code = forward(out, &mut outputs, end.wait()) => code?,
    };
    // What it wrote before it ended is there; what others write later is theirs.
    while let Ok(Some((channel, chunk))) = tokio::time::timeout(DRAIN, outputs.next()).await {
        out.send(Message::binary(channel.message(&chunk))).await?;
    }
    Ok(End::Exited(code))
}

/// Takes what the client says; returns when there is nothing more to expect of it.
async fn listen(
    input: &mut SplitStream<Socket>,
    protocol: Protocol,
    streams: Streams,
    mut stdin: Option<Sender>,
    terminal: Option<&Terminal>,
) -> Gone {
    loop {
        let message = match input.next().await {
            Some(Ok(Message::Binary(bytes))) => bytes,
            Some(Ok(Message::Text(text))) => Bytes::from(text),
            Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => continue,
            Some(Ok(Message::Close(_))) | None => return Gone::Client,
            Some(Err(error)) => return error.into(),
        };
        match remote_command::read(protocol, streams, &message) {
            Ok(Input::Stdin(bytes)) => {
                // A command may close its input and go on; what comes then is for nobody.
                if let Some(open) = &mut stdin
                    && open.write_all(bytes).await.is_err()
                {
                    stdin = None;
                }
            }
            // The end of a terminal's input is a character that its user types.
            Ok(Input::StdinEnds) if terminal.is_none() => stdin = None,
            Ok(Input::StdinEnds | Input::Nothing) => {}
            Ok(Input::Resize(size)) => {
                if let Some(Err(error)) = terminal.map(|terminal| terminal.resize(size)) {
                    tracing::debug!(%error, "a terminal cannot be resized");
                }
            }
            Err(error) => return error.into(),
        }
    }
}

/// Sends what the command writes, and signs of life, until it has ended.
async fn forward(out: &mut Out, outputs: &mut Outputs, end: impl Future<Output = i32>) -> Result<i32, Gone> {
    tokio::pin!(end);
    let mut life = signs_of_life();
    loop {
        let message = tokio::select! {
            code = &mut end => return Ok(code),
            Some((channel, chunk)) = outputs.next() => Message::binary(channel.message(&chunk)),
            _ = life.tick() => Message::Ping(Bytes::new()),
        };
        out.send(message).await?;
    }
}

fn signs_of_life() -> Interval {
    let mut interval = tokio::time::interval(PING_INTERVAL);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The first tick is at once.
    interval.reset();
    interval
}

/// The outputs of a command.
struct Outputs {
    stdout: Source,
    stderr: Source,
}

impl Outputs {
    /// The next piece of either; `None` when both have ended. Nothing is lost if it is dropped before it returns.
    async fn next(&mut self) -> Option<(Output, Vec<u8>)> {
        loop {
            let (channel, chunk) = tokio::select! {
                chunk = self.stdout.next(), if self.stdout.is_open() => (Output::Stdout, chunk),
                chunk = self.stderr.next(), if self.stderr.is_open() => (Output::Stderr, chunk),
                else => return None,
            };
            if let Some(chunk) = chunk {
                return Some((channel, chunk));
            }
        }
    }
}

/// One output, until it ends.
struct Source(Option<Receiver>);

impl Source {
    fn is_open(&self) -> bool {
        self.0.is_some()
    }

    async fn next(&mut self) -> Option<Vec<u8>> {
        let open = self.0.as_mut()?;
        let mut chunk = vec![0; CHUNK_BYTES];
        match open.read(&mut chunk).await {
            Ok(bytes) if bytes > 0 => {
                chunk.truncate(bytes);
                Some(chunk)
            }
            // A terminal that nobody has open any more says so by an error.
            Ok(_) | Err(_) => {
                self.0 = None;
                None
            }
        }
    }
}

/// Sends what the container's own process writes from now on.
async fn attach(
    out: &mut Out,
    input: &mut SplitStream<Socket>,
    run: RunDir,
    protocol: Protocol,
    streams: Streams,
) -> Result<End, Gone> {
    let sending = async {
        let mut stdout = streams.stdout.then(|| Reader::from_now_on(run.clone(), "stdout"));
        let mut stderr = streams.stderr.then(|| Reader::from_now_on(run, "stderr"));
        let mut life = signs_of_life();
        while stdout.is_some() || stderr.is_some() {
            let message = tokio::select! {
                chunk = following(&mut stdout) => chunk.map(|chunk| Output::Stdout.message(&chunk)),
                chunk = following(&mut stderr) => chunk.map(|chunk| Output::Stderr.message(&chunk)),
                _ = life.tick() => {
                    out.send(Message::Ping(Bytes::new())).await?;
                    continue;
                }
            };
            if let Some(message) = message {
                out.send(Message::binary(message)).await?;
            }
        }
        Ok(End::Exited(0))
    };
    tokio::select! {
        done = sending => done,
        gone = listen(input, protocol, streams, None, None) => Err(gone),
    }
}

/// The next piece of a log; it is forgotten when the container has ended. Waits for ever where there is none.
async fn following(log: &mut Option<Reader>) -> Option<Vec<u8>> {
    let Some(open) = log else { return std::future::pending().await };
    let chunk = open.next().await;
    if chunk.is_none() {
        *log = None;
    }
    chunk
}
