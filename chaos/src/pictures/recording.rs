//! `watchlock watch` at a terminal, recorded in the format of asciinema (version 2), and rendered as an animation.

use std::{
    fmt::Write as _,
    fs::{self, File},
    io::{Read as _, Write as _},
    mem,
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
    process::Stdio,
    sync::mpsc,
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use rustix::{
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{Winsize, tcsetwinsize},
};
use serde_json::{Value, json};
use tokio::{
    process::{Child, Command},
    time::{Instant, sleep, timeout},
};
use watchlock::{Held, LockClient, target};
use watchlock_testkit::Cluster;

use super::{
    canvas::{Canvas, escape},
    screen::{Cell, Look, Screen},
};
use crate::{Result, client::connect, jobs};

/// The recording, a picture of its own: `asciinema play` shows it.
pub(super) const CAST: &str = "watch.cast";

const DATABASE: &str = "app";
const COLUMNS: u16 = 110;
const ROWS: u16 = 20;

/// The pause between two acts of the scene: a reader has to see each.
const PACE: Duration = Duration::from_millis(1_500);

/// The name of the machine in the recording, cut or filled up to the length of the true one.
const HOST: &str = "app-1.example.internal.network";

/// Maximum time for the program to end.
const PATIENCE: Duration = Duration::from_secs(30);

/// Plays the scene while `watchlock watch` runs, and stores what it wrote.
pub(super) async fn record(folder: &Path) -> Result<()> {
    let program = jobs::program()?;
    let cluster = Cluster::replica_set(1).await?;
    let uri = cluster.uri();
    let actors = Actors::connect(&uri).await?;
    let schedule = actors
        .deploy
        .election("scheduler")
        .campaign("10.0.0.7:8080")
        .reason("leads the jobs")
        .await?;
    let invoice = actors
        .billing
        .mutex("invoice-42")
        .acquire()
        .reason("monthly run")
        .await?;

    let mut watching = Watching::start(&program, &uri)?;
    let [prices, correction] = actors.play().await?;
    watching.quit().await?;
    correction.release().await?;
    prices.release().await?;
    schedule.resign().await?;
    drop(invoice);
    actors.shutdown().await;
    fs::write(folder.join(CAST), cast(watching.output.try_iter().collect())?)?;
    Ok(())
}

/// The clients of the scene.
struct Actors {
    billing: LockClient,
    reports: LockClient,
    importer: LockClient,
    deploy: LockClient,
}

impl Actors {
    async fn connect(uri: &str) -> Result<Self> {
        Ok(Self {
            billing: client(uri, "billing").await?,
            reports: client(uri, "reports").await?,
            importer: client(uri, "importer").await?,
            deploy: client(uri, "deploy").await?,
        })
    }

    /// Plays what the picture shows: locks are taken, waited for, handed over and broken. Returns the handles that are
    /// left.
    async fn play(&self) -> Result<[Held<target::Mutex>; 2]> {
        sleep(PACE).await;
        let nightly = self
            .reports
            .mutex("nightly-report")
            .acquire()
            .reason("night of the 3rd")
            .await?;
        sleep(PACE).await;
        let mutex = self.importer.mutex("nightly-report");
        let waiting = tokio::spawn(async move { mutex.acquire().reason("fresh prices").await });
        sleep(PACE).await;
        let mutex = self.reports.mutex("invoice-42");
        let behind = tokio::spawn(async move { mutex.acquire().reason("correction").await });
        sleep(PACE).await;
        nightly.release().await?;
        let prices = waiting.await??;
        sleep(PACE).await;
        self.deploy.break_lock("invoice-42").await?;
        let correction = behind.await??;
        sleep(2 * PACE).await;
        Ok([prices, correction])
    }

    async fn shutdown(self) {
        for client in [self.billing, self.reports, self.importer, self.deploy] {
            client.shutdown().await;
        }
    }
}

/// `watchlock watch` at a terminal of its own.
struct Watching {
    child: Child,
    /// The other end of the terminal.
    keyboard: File,
    /// The pieces of output, each with the time since the start.
    output: mpsc::Receiver<(Duration, Vec<u8>)>,
}

impl Watching {
    fn start(program: &Path, uri: &str) -> Result<Self> {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY)?;
        grantpt(&master)?;
        unlockpt(&master)?;
        let path = ptsname(&master, Vec::new())?;
        let path = path.to_str()?;
        let open = || {
            // Never the terminal of this process.
            let flags = i32::try_from(OpenptFlags::NOCTTY.bits()).unwrap_or(0);
            File::options().read(true).write(true).custom_flags(flags).open(path)
        };
        let size = Winsize {
            ws_row: ROWS,
            ws_col: COLUMNS,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&open()?, size)?;
        let child = Command::new("setsid")
            .args(["--ctty", "--wait"])
            .arg(program)
            .arg("watch")
            .env("MONGODB_URI", uri)
            .env("WATCHLOCK_DATABASE", DATABASE)
            .env("TERM", "xterm-256color")
            .env_remove("NO_COLOR")
            .stdin(Stdio::from(open()?))
            .stdout(Stdio::from(open()?))
            .stderr(Stdio::from(open()?))
            .kill_on_drop(true)
            .spawn()?;
        let keyboard = File::from(master);
        let output = read_along(keyboard.try_clone()?);
        Ok(Self {
            child,
            keyboard,
            output,
        })
    }

    /// Has the program end, as a user does.
    async fn quit(&mut self) -> Result<()> {
        self.keyboard.write_all(b"q")?;
        let status = timeout(PATIENCE, self.child.wait()).await??;
        if !status.success() {
            return Err(format!("`watchlock watch` ended with {status}").into());
        }
        Ok(())
    }
}

/// Reads in a thread what is written to the terminal, each piece with the time since now.
fn read_along(mut screen: File) -> mpsc::Receiver<(Duration, Vec<u8>)> {
    let begun = Instant::now();
    let (sender, output) = mpsc::channel();
    thread::spawn(move || {
        let mut part = [0; 4096];
        // An error if nobody has the other end any more.
        while let Ok(length @ 1..) = screen.read(&mut part) {
            if sender.send((begun.elapsed(), part[..length].to_vec())).is_err() {
                return;
            }
        }
    });
    output
}

async fn client(uri: &str, label: &str) -> Result<LockClient> {
    let database = connect(uri, DATABASE, label).await?;
    Ok(LockClient::builder(database).label(label).build().await?)
}

/// Writes the recording: a header, and a line for each piece of output.
fn cast(output: Vec<(Duration, Vec<u8>)>) -> Result<String> {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = host.trim();
    let shown: String = HOST.chars().cycle().take(host.chars().count()).collect();
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    let header = json!({
        "version": 2,
        "width": COLUMNS,
        "height": ROWS,
        "timestamp": now,
        "title": "watchlock watch",
        "env": { "TERM": "xterm-256color" },
    });
    let mut text = format!("{header}\n");
    let mut rest = Vec::new();
    for (at, part) in output {
        rest.extend(part);
        // A character may be cut in two.
        let whole = match str::from_utf8(&rest) {
            Ok(_) => rest.len(),
            Err(error) => error.valid_up_to(),
        };
        let tail = rest.split_off(whole);
        let part = String::from_utf8(mem::replace(&mut rest, tail))?;
        let part = part
            .replace(&format!("@{host}:"), &format!("@{shown}:"))
            .replace(&format!("({host},"), &format!("({shown},"));
        // Milliseconds are enough for people.
        let at = (at.as_secs_f64() * 1e3).round() / 1e3;
        writeln!(text, "{}", json!([at, "o", part]))?;
    }
    Ok(text)
}

/// The size of a cell.
const CELL: (f64, f64) = (7.2, 16.0);
const LEFT: f64 = 16.0;
const TOP: f64 = 44.0;
const WIDTH: u32 = 824;

/// Time between two frames of the animation: a tick of the view.
const FRAME: f64 = 1.0;

/// Maximum number of frames.
const FRAMES: usize = 14;

/// Draws the stored recording: the first frame, and over it the rows that differ in each further one.
pub(super) fn draw(folder: &Path) -> Result<String> {
    picture(&fs::read_to_string(folder.join(CAST))?)
}

fn picture(cast: &str) -> Result<String> {
    let mut frames = frames(cast)?;
    // The animation goes round and round, so it can begin with the frame that shows the most.
    let most = (0..frames.len()).max_by_key(|frame| written(&frames[*frame]));
    frames.rotate_left(most.unwrap_or(0));
    let (first, others) = frames.split_first().ok_or("the recording shows nothing")?;
    let seconds = FRAME * f64::from(u32::try_from(frames.len())?);
    let mut canvas = Canvas::new(
        WIDTH,
        "watchlock watch at a terminal: locks, holders, waiters and events",
    );
    let share = 100.0 / f64::from(u32::try_from(frames.len())?);
    // Readers who want no motion see the first frame, and so do programs that can't animate.
    canvas.style(&format!(
        "text.t{{font-family:ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace}}.f{{opacity:0;\
         animation:f {seconds}s step-end infinite}}@keyframes f{{0%{{opacity:1}}{share:.3}%{{opacity:0}}}}\
         @media(prefers-reduced-motion:reduce){{.f{{animation:none}}}}\
         .c1{{fill:#cf222e}}.c2{{fill:#1a7f37}}.c3{{fill:#9a6700}}.c4{{fill:#0969da}}.c5{{fill:#8250df}}.c6{{fill:#1b7c83}}\
         @media(prefers-color-scheme:dark){{.c1{{fill:#ff7b72}}.c2{{fill:#3fb950}}.c3{{fill:#d29922}}.c4{{fill:#58a6ff}}\
         .c5{{fill:#bc8cff}}.c6{{fill:#39c5cf}}}}"
    ));
    canvas.text("ink bold", LEFT, 26.0, "$ watchlock watch");
    for (row, cells) in first.iter().enumerate() {
        draw_row(&mut canvas, row, cells);
    }
    for (number, frame) in others.iter().enumerate() {
        let delay = FRAME * f64::from(u32::try_from(number + 1)?);
        canvas.raw(&format!("<g class=\"f\" style=\"animation-delay:{delay}s\">\n"));
        for (row, cells) in frame.iter().enumerate() {
            if *cells != first[row] {
                let y = TOP + CELL.1 * f64::from(u32::try_from(row)?);
                canvas.rect("paper", LEFT - 2.0, y, CELL.0 * f64::from(COLUMNS) + 4.0, CELL.1);
                draw_row(&mut canvas, row, cells);
            }
        }
        canvas.raw("</g>\n");
    }
    Ok(canvas.finish(TOP + CELL.1 * f64::from(ROWS) + 14.0))
}

/// Returns the number of cells with text.
fn written(frame: &[Vec<Cell>]) -> usize {
    frame
        .iter()
        .flatten()
        .filter(|(character, _)| *character != ' ')
        .count()
}

/// Plays the recording, and returns the screen once for each tick, beginning with the first that has text.
fn frames(cast: &str) -> Result<Vec<Vec<Vec<Cell>>>> {
    let mut lines = cast.lines();
    let header: Value = serde_json::from_str(lines.next().ok_or("the recording is empty")?)?;
    if header["version"] != 2 {
        return Err("the recording is not in version 2 of asciinema's format".into());
    }
    let mut screen = Screen::new(COLUMNS.into(), ROWS.into());
    let (mut frames, mut next) = (Vec::new(), 0.0);
    for line in lines {
        let (at, kind, output): (f64, String, String) = serde_json::from_str(line)?;
        if kind != "o" {
            continue;
        }
        // The contents of the screen at the tick.
        while at >= next && !screen.is_blank() {
            frames.push(screen.rows().to_vec());
            next = next.max(at - FRAME) + FRAME;
        }
        // The program leaves its screen.
        if output.contains("\u{1b}[?1049l") {
            break;
        }
        screen.feed(&output);
        next = if screen.is_blank() { at } else { next };
    }
    frames.dedup();
    frames.truncate(FRAMES);
    match screen.unknown {
        Some(unknown) => Err(format!("the recording has a sequence that is not known: {unknown}").into()),
        None => Ok(frames),
    }
}

/// Draws the cells of a row, those of one look together.
fn draw_row(canvas: &mut Canvas, row: usize, cells: &[Cell]) {
    let visible = cells
        .iter()
        .rposition(|(character, look)| *character != ' ' || look.reversed);
    let Some(last) = visible else { return };
    let mut column = 0;
    while column <= last {
        let look = cells[column].1;
        let same = cells[column..=last]
            .iter()
            .take_while(|(_, other)| *other == look)
            .count();
        let run: String = cells[column..column + same]
            .iter()
            .map(|(character, _)| *character)
            .collect();
        draw_run(canvas, row, column, &run, look);
        column += same;
    }
}

#[expect(clippy::cast_precision_loss, reason = "a terminal has few cells")]
fn draw_run(canvas: &mut Canvas, row: usize, column: usize, run: &str, look: Look) {
    let y = TOP + CELL.1 * row as f64;
    let x = |column: usize| LEFT + CELL.0 * column as f64;
    if look.reversed {
        canvas.rect("soft", x(column), y, CELL.0 * run.chars().count() as f64, CELL.1);
    }
    let colour = match look.colour {
        _ if look.reversed => "paper".to_owned(),
        Some(colour @ (1..=6 | 9..=14)) => format!("c{}", colour % 8),
        Some(8) => "soft".to_owned(),
        _ if look.dim => "soft".to_owned(),
        _ => "ink".to_owned(),
    };
    let bold = if look.bold { " bold" } else { "" };
    // Words stand at their columns, whatever the width of the reader's font.
    let mut from = 0;
    let characters: Vec<char> = run.chars().collect();
    while from < characters.len() {
        if characters[from] == ' ' {
            from += 1;
            continue;
        }
        // Up to two blanks in a row: columns are further apart.
        let rest = &characters[from..];
        let end = rest
            .windows(2)
            .position(|pair| pair == [' ', ' '])
            .unwrap_or(rest.len());
        let word: String = rest[..end].iter().collect();
        let word = word.trim_end();
        let width = CELL.0 * word.chars().count() as f64;
        canvas.raw(&format!(
            "<text class=\"t {colour}{bold}\" x=\"{:.1}\" y=\"{:.0}\" textLength=\"{width:.1}\">{}</text>\n",
            x(column + from),
            y + 12.0,
            escape(word)
        ));
        from += end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recording_is_played_tick_by_tick() {
        let header = json!({ "version": 2, "width": COLUMNS, "height": ROWS });
        let outputs = [
            json!([0.1, "o", "\u{1b}[?1049h\u{1b}[2J"]),
            json!([0.5, "o", "one"]),
            json!([0.9, "o", "\u{1b}[2;1Htwo"]),
            // Longer than a tick later; the screen was the same all the time.
            json!([4.0, "o", "\u{1b}[3;1H<three>"]),
            json!([6.0, "o", "\u{1b}[?1049l"]),
        ];
        let cast = outputs
            .iter()
            .fold(format!("{header}\n"), |cast, output| format!("{cast}{output}\n"));
        let frames = frames(&cast).unwrap();
        assert_eq!(
            frames.iter().map(|frame| written(frame)).collect::<Vec<_>>(),
            [3, 6, 13]
        );
        let picture = picture(&cast).unwrap();
        // The fullest frame stays below the others, which differ from it in one row or two.
        assert_eq!(picture.matches("&lt;three&gt;").count(), 1, "{picture}");
        assert_eq!(picture.matches("<g class=\"f\"").count(), 2, "{picture}");
        assert_eq!(picture.matches(">two</text>").count(), 1, "{picture}");
    }

    #[test]
    fn a_character_that_was_read_in_two_parts_is_one() {
        let output = [b"\xc3".to_vec(), b"\xa4b".to_vec()].map(|part| (Duration::from_millis(1_234), part));
        let cast = cast(output.to_vec()).unwrap();
        let last = cast.lines().last().unwrap();
        assert_eq!(last, r#"[1.234,"o","äb"]"#);
    }
}
