//! The exit codes: a scene shows each code of each command, by the table of the guide.

use std::{
    collections::BTreeSet,
    fs::File,
    os::unix::process::ExitStatusExt as _,
    process::{ExitStatus, Stdio},
    sync::Arc,
};

use futures::{StreamExt as _, stream};
use mongodb::bson::{Document, doc, oid::ObjectId};
use tokio::{process::Command, runtime::Handle, sync::Barrier, task::block_in_place, time::timeout};
use watchlock::LockClient;
use watchlock_core::protocol::DETACHED;
use watchlock_testkit::{Liar, Proxy, liar::Told, shared};

use crate::{
    Started, bare,
    common::{
        Ground, PATIENCE, eventually, is_vacant,
        users::{PASSWORD, user},
        within,
    },
    guide::{PAGE, commands, list},
    job::full_pipe,
    program, signal, started_by, verify, words,
};

/// Scenes that are played at once.
const AT_ONCE: usize = 8;

/// A job that is done when the scenes begin, and does not become due again at the next full hour.
const RAN: &str = "run --once-per 1h --since-success ran true";

/// A row of the table for one of its commands.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Row {
    command: String,
    code: String,
    meaning: String,
}

/// Returns the table of the guide, of all these commands.
fn documented(commands: &[String]) -> BTreeSet<Row> {
    let mut rows = BTreeSet::new();
    for line in list(PAGE, "| code | commands | |\n|---|---|---|\n") {
        let cells: Vec<String> = line.split('|').map(|cell| cell.trim().replace('`', "")).collect();
        let [_, code, of, meaning, _] = &cells[..] else {
            panic!("{line}")
        };
        let named = |names: &str| -> Vec<String> { names.split(", ").map(str::to_owned).collect() };
        let of = match of.strip_prefix("all") {
            None => named(of),
            Some("") => commands.to_vec(),
            Some(but) => {
                let but = named(but.strip_prefix(" but ").unwrap());
                assert!(but.iter().all(|name| commands.contains(name)), "{line}");
                commands.iter().filter(|name| !but.contains(name)).cloned().collect()
            }
        };
        for command in of {
            assert!(commands.contains(&command), "{line}");
            let (code, meaning) = (code.clone(), meaning.clone());
            assert!(rows.insert(Row { command, code, meaning }), "{line}");
        }
    }
    rows
}

#[tokio::test(flavor = "multi_thread")]
async fn each_command_exits_with_each_of_its_codes() {
    let world = World::new().await;
    let rows = documented(&commands().await);
    let plays = rows.iter().map(async |row| {
        // Some of its checks take as long as their leases.
        let limit = match row.command.as_str() {
            "verify" | "bench" => verify::RUN,
            _ => PATIENCE,
        };
        let Ok(shown) = timeout(limit, world.play(row)).await else {
            panic!("it does not end: {row:?}");
        };
        let number: i32 = match row.code.as_str() {
            "128+n" => 128 + 15,
            code => code.parse().unwrap(),
        };
        (row, shown, number)
    });
    let wrong = stream::iter(plays).buffer_unordered(AT_ONCE);
    let wrong = wrong.filter(|(_, shown, number)| std::future::ready(*shown != Some(*number)));
    let wrong: Vec<_> = wrong.collect().await;
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// A server, with locks in all the states that a command may find.
struct World {
    ground: Ground,
    locks: LockClient,
    /// A user who may do anything but write locks, and one with a wrong password.
    reader: Ground,
    stranger: Ground,
}

/// Returns the code as a shell shows it.
fn code(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap())
}

async fn ended(program: &mut Command) -> i32 {
    let ended = program.stdout(Stdio::null()).stderr(Stdio::null()).status();
    code(ended.await.unwrap())
}

impl World {
    async fn new() -> Self {
        let ground = Ground::replica_set("cli_codes").await;
        let locks = ground.locks().await;
        // These are held for as long as the test lasts: its client is.
        std::mem::forget(locks.mutex("held").acquire().await.unwrap());
        std::mem::forget(locks.election("led").campaign("").await.unwrap());
        let foreign = doc! { "_id": "foreign", "holders": ObjectId::new() };
        ground.documents().await.insert_one(foreign).await.unwrap();
        let orders = ground.driver().await.database(&ground.database).collection("orders");
        orders
            .insert_many([doc! { "_id": "7" }, doc! { "_id": 7 }])
            .await
            .unwrap();
        assert_eq!(ended(program(&ground).args(words(RAN))).await, 0);
        let (reader, _) = user("cli_reader", &["find", "changeStream"]).await;
        let stranger = reader.through(reader.uri().replace(PASSWORD, "wrong"));
        Self {
            ground,
            locks,
            reader,
            stranger,
        }
    }

    /// Plays the scene of a row, and returns the exit code; `None` if there is no such scene.
    async fn play(&self, row: &Row) -> Option<i32> {
        let command = row.command.as_str();
        // Each scene has a lock of its own.
        let name = &format!("{command}-{}", row.code)[..];
        Some(match row.code.as_str() {
            "0" => self.succeed(command, name).await?,
            "1" => self.find_nothing(command, name).await?,
            "2" => {
                // Slow by itself, which is no broken promise.
                let slow = verify::slow().await;
                let ground = self.ground.through(slow.uri());
                ended(program(&ground).args(words("verify --seconds 1 --patience 1"))).await
            }
            "64" => ended(program(&self.ground).args([command, "--no-such-option"])).await,
            "65" if row.meaning.contains("several documents") => {
                self.run(&format!("{} --documents orders", line(command, "7")?)).await
            }
            "65" => self.run(&line(command, "foreign")?).await,
            "69" => {
                let mut program = bare();
                program.env("MONGODB_URI", "mongodb://127.0.0.1:1/app?serverSelectionTimeoutMS=200");
                ended(program.args(words(&line(command, name)?))).await
            }
            "70" => self.refuse(command, name).await?,
            "74" => self.run(RAN).await,
            "75" if row.meaning.contains("another run") => self.run("run --once-per 1h held true").await,
            "75" => {
                let taken = if command == "elect" { "led" } else { "held" };
                self.run(&line(command, taken)?.replacen(' ', " --timeout 0s ", 1))
                    .await
            }
            "76" => self.lose(command, name).await?,
            "77" => ended(program(&self.stranger).args(words(&line(command, name)?))).await,
            "126" => self.run(&format!("{command} {name} /dev/null")).await,
            "127" => self.run(&format!("{command} {name} no-such-program")).await,
            "128+n" => self.terminate(command, name).await?,
            _ => return None,
        })
    }

    async fn run(&self, line: &str) -> i32 {
        ended(program(&self.ground).args(words(line))).await
    }

    async fn succeed(&self, command: &str, name: &str) -> Option<i32> {
        match command {
            "hold" => {
                let mut holding = Started::run(&self.ground, format!("hold {name}"));
                holding.line().await;
                signal("TERM", holding.pid());
                return Some(code(holding.status().await));
            }
            "watch" => {
                let mut watching = Started::run(&self.ground, "watch held");
                watching.line().await;
                // Its reader has read enough.
                return watching.unread().await;
            }
            "renew" | "release" => {
                let held = self.locks.mutex(name).acquire().await.unwrap().detach().await.unwrap();
                return Some(self.run(&format!("{command} {name} --token {}", held.token())).await);
            }
            "break" => std::mem::forget(self.locks.mutex(name).acquire().await.unwrap()),
            _ => {}
        }
        let name = match command {
            "observe" => "led",
            "show" => "held",
            _ => name,
        };
        Some(self.run(&line(command, name)?).await)
    }

    async fn find_nothing(&self, command: &str, name: &str) -> Option<i32> {
        match command {
            "doctor" => Some(ended(program(&self.reader).arg("doctor")).await),
            "verify" => {
                let ground = Ground::replica_set("cli_codes_spoiled").await;
                let spoiling = verify::spoil(&ground, "protocol");
                let ended = ended(program(&ground).args(words(&line(command, name)?))).await;
                spoiling.abort();
                Some(ended)
            }
            "permits" => Some(self.run(&format!("permits {name}")).await),
            "show" | "break" | "renew" | "release" | "observe" => Some(self.run(&line(command, name)?).await),
            _ => None,
        }
    }

    async fn refuse(&self, command: &str, name: &str) -> Option<i32> {
        let mut program = program(&self.ground);
        program.args(words(&line(command, name)?));
        if ["completions", "man"].contains(&command) {
            let full = File::options().write(true).open("/dev/full").unwrap();
            return Some(code(program.stdout(full).stderr(Stdio::null()).status().await.unwrap()));
        }
        let few_files = ["-c", "ulimit -n 9; exec \"$@\"", "sh"];
        Some(ended(&mut started_by("sh", &few_files, &program)).await)
    }

    /// Takes the lock away from the command.
    async fn lose(&self, command: &str, name: &str) -> Option<i32> {
        let proxy = Proxy::before(shared::replica_set().await.addr(0)).unwrap();
        if command == "acquire" {
            return Some(self.lose_before_it_is_left(name).await);
        }
        let mut losing = Started::run(
            &self.ground.through(proxy.uri()),
            match command {
                "run" | "elect" => format!("{command} {name} sh -c `echo; exec sleep 300`"),
                "hold" => line(command, name)?,
                _ => return None,
            },
        );
        losing.line().await;
        assert!(!is_vacant(&self.locks, name).await);
        self.locks.break_lock(name).await.unwrap();
        Some(code(losing.status().await))
    }

    /// Takes the lock away from `acquire` while the write that leaves it taken is on its way. Without that write's
    /// being held up, the command might see no grant at all, and rightly take the lock once more.
    async fn lose_before_it_is_left(&self, name: &str) -> i32 {
        let meeting = Arc::new(Barrier::new(2));
        let on_the_way = meeting.clone();
        let held_up = move |command: &mut Document| {
            if command.to_string().contains(DETACHED) {
                let until_broken = async {
                    on_the_way.wait().await;
                    on_the_way.wait().await;
                };
                block_in_place(|| Handle::current().block_on(until_broken));
            }
            Told::Server
        };
        let server = shared::replica_set().await.addr(0);
        let slow = Liar::before(server, held_up, |_, _| {}).await.unwrap();
        let mut losing = Started::run(&self.ground.through(slow.uri()), line("acquire", name).unwrap());
        meeting.wait().await;
        assert!(!is_vacant(&self.locks, name).await);
        self.locks.break_lock(name).await.unwrap();
        meeting.wait().await;
        code(losing.status().await)
    }

    /// Terminates the command while it is at work.
    async fn terminate(&self, command: &str, name: &str) -> Option<i32> {
        if ["completions", "man"].contains(&command) {
            let (_unread, full) = full_pipe();
            let mut writing = bare().args(words(&line(command, name)?)).stdout(full).spawn().unwrap();
            signal("TERM", writing.id().unwrap());
            return Some(code(within(PATIENCE, "its end", writing.wait()).await.unwrap()));
        }
        let proxy = Proxy::before(shared::replica_set().await.addr(0)).unwrap();
        proxy.black_hole();
        let mut asking = Started::run(&self.ground.through(proxy.uri()), line(command, name)?);
        eventually(PATIENCE, "it connects", async || proxy.lose(|_| true) > 0).await;
        signal("TERM", asking.pid());
        Some(code(asking.status().await))
    }
}

/// Returns the line of a command about this lock that runs to its end by itself.
fn line(command: &str, name: &str) -> Option<String> {
    let rest = match command {
        "run" | "elect" => "NAME true",
        "hold" | "wait" | "show" | "watch" => "NAME",
        "acquire" => "NAME --for 1m",
        "renew" | "release" => "NAME --token 7",
        "observe" => "NAME --once",
        "ls" | "doctor" | "man" => "",
        "verify" => "--seconds 1 --section protocol",
        "bench" => "--seconds 1",
        "break" => "NAME --yes",
        "permits" => "NAME 3",
        "completions" => "bash",
        _ => return None,
    };
    Some(format!("{command} {}", rest.replace("NAME", name)))
}
