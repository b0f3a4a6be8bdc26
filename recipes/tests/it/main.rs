//! The recipes of the guide, each run against a real server.

mod numbers;

use std::{
    future::ready,
    sync::{Arc, Mutex},
    time::Duration,
};

use mongodb::{
    Client, Database,
    bson::{Document, doc},
};
use opentelemetry_sdk::trace::{InMemorySpanExporter, SpanData};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::{mpsc, oneshot},
    time::timeout,
};
use tracing::Instrument as _;
use watchlock::{FencingToken, LockClient, errors::AcquireError};
use watchlock_recipes::{cron, dotnet, leader, opentelemetry, outbox, shedlock, web_service};
use watchlock_testkit::shared;

/// How long anything may take at all, on a machine that is busy with other things.
const PATIENCE: Duration = Duration::from_secs(60);

async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    timeout(PATIENCE, future)
        .await
        .unwrap_or_else(|_| panic!("not within {PATIENCE:?}: {what}"))
}

async fn database(prefix: &str) -> Database {
    let client = Client::with_uri_str(shared::replica_set().await.uri()).await.unwrap();
    client.database(&shared::unique_name(prefix))
}

async fn locks(database: &Database) -> LockClient {
    LockClient::builder(database.clone()).build().await.unwrap()
}

/// Returns a future that is ready when its sender is dropped.
fn stop() -> (oneshot::Sender<()>, impl Future<Output = ()> + Send + 'static) {
    let (sender, stopped) = oneshot::channel();
    (sender, async move { drop(stopped.await) })
}

/// Returns the status and the body of an answer.
async fn request(address: std::net::SocketAddr, method: &str, path: &str) -> (u16, String) {
    let asked = async {
        let mut connection = TcpStream::connect(address).await.unwrap();
        let text = format!("{method} {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
        connection.write_all(text.as_bytes()).await.unwrap();
        let mut answer = String::new();
        connection.read_to_string(&mut answer).await.unwrap();
        answer
    };
    let answer = within(path, asked).await;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

#[tokio::test]
async fn a_web_service_excludes_requests_and_ends_gracefully() {
    let database = database("web").await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stopping, stopped) = stop();
    let of_service = Client::with_uri_str(shared::replica_set().await.uri()).await.unwrap();
    let served = web_service::serve(listener, of_service.database(database.name()), stopped);
    let served = tokio::spawn(served);

    let (status, body) = request(address, "POST", "/invoices/42").await;
    assert_eq!(status, 200, "{body}");
    assert!(body.starts_with("invoice 42 is billed under token "), "{body}");

    let others = locks(&database).await;
    let held = others.mutex("invoice-42").acquire().reason("an audit").await.unwrap();
    let (status, body) = request(address, "GET", "/admin/locks").await;
    assert_eq!(status, 200, "{body}");
    let listed: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!(listed[0]["name"], "invoice-42");
    assert_eq!(listed[0]["holders"][0]["reason"], "an audit");
    let (status, body) = request(address, "POST", "/invoices/42").await;
    // Nothing about the holder.
    assert_eq!((status, &*body), (409, "it is being billed"));
    held.release().await.unwrap();

    // A request that has begun is answered.
    let held = others.mutex("invoice-43").acquire().await.unwrap();
    let last = tokio::spawn(async move { request(address, "POST", "/invoices/43").await });
    let is_waited_for = async {
        while others.inspect("invoice-43").await.unwrap().unwrap().waiters.is_empty() {
            tokio::task::yield_now().await;
        }
    };
    within("the request waits", is_waited_for).await;
    drop(stopping);
    held.release().await.unwrap();
    assert_eq!(last.await.unwrap().0, 200);
    within("the service ends", served).await.unwrap().unwrap();
    let left = others.list().held(true).await.unwrap();
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test]
async fn a_web_service_answers_without_details_and_tells_interrupted_work_from_work_that_was_not_begun() {
    let locks = LockClient::in_memory();
    let invoice = locks.mutex("invoice-42");
    let held = invoice.acquire().await.unwrap();
    let taken = invoice.acquire().timeout(Duration::ZERO).await.unwrap_err();
    // There was no time to ask.
    let unanswered = invoice.try_acquire().timeout(Duration::ZERO).await.unwrap_err();
    locks.break_lock("invoice-42").await.unwrap();
    let lost = held.lost().await;
    let answers = [
        (lost.into(), 500, "billed in part"),
        (AcquireError::Closed, 503, "try again"),
        (taken, 409, "being billed"),
        (unanswered, 503, "try again"),
    ];
    for (error, status, text) in answers {
        let (answered, answer) = web_service::refusal(&error);
        assert_eq!(answered.as_u16(), status, "{answer}");
        assert!(
            answer.contains(text) && !answer.contains(&error.to_string()),
            "{answer}"
        );
    }
}

#[tokio::test]
async fn one_replica_sweeps_and_the_next_takes_over_when_it_stops() {
    let database = database("leader").await;
    let (swept, mut sweeps) = mpsc::unbounded_channel();
    let mut replicas = Vec::new();
    for name in ["a", "b"] {
        let (locks, swept) = (locks(&database).await, swept.clone());
        let (stopping, stopped) = stop();
        let sweeping = async move {
            let sweep = |token: FencingToken| {
                swept.send((name, token)).unwrap();
                ready(())
            };
            leader::sweep_while_leading(&locks, name, sweep, stopped).await
        };
        replicas.push((name, stopping, tokio::spawn(sweeping)));
    }
    let (first, token) = within("a sweep", sweeps.recv()).await.unwrap();
    let at = replicas.iter().position(|(name, ..)| *name == first).unwrap();
    let (_, stopping, ended) = replicas.remove(at);
    drop(stopping);
    within("it resigns", ended).await.unwrap().unwrap();
    // What was swept before it stopped.
    while let Ok((name, _)) = sweeps.try_recv() {
        assert!(name == first || name == replicas[0].0);
    }
    let (second, later) = within("the next sweep", sweeps.recv()).await.unwrap();
    assert_eq!(second, replicas[0].0);
    assert!(later > token);
    let (_, stopping, ended) = replicas.remove(0);
    drop(stopping);
    within("it resigns", ended).await.unwrap().unwrap();
}

#[tokio::test]
async fn each_message_of_an_outbox_is_sent_by_one_worker_and_again_if_that_fails() {
    let database = database("outbox").await;
    let messages = database.collection::<Document>("outbox");
    let (sent, mut deliveries) = mpsc::unbounded_channel();
    let mut workers = Vec::new();
    for _ in 0..2 {
        let (locks, sent) = (locks(&database).await, sent.clone());
        let (stopping, stopped) = stop();
        let outbox = database.collection("outbox");
        let draining = async move {
            let send = |message: &outbox::Message, token| {
                let is_first = sent.send((message.body.clone(), token)).is_ok() && message.topic == "broken";
                ready(if is_first { Err("no such topic".into()) } else { Ok(()) })
            };
            let drained = outbox::drain(&locks, outbox, send, stopped).await;
            // A claim that was given up may have been granted at that moment.
            locks.shutdown().await;
            drained
        };
        workers.push((stopping, tokio::spawn(draining)));
    }
    // Waiting workers are woken by an insertion.
    for number in 0..4 {
        let message = doc! { "topic": "orders", "body": number.to_string(), "sent": false };
        messages.insert_one(message).await.unwrap();
    }
    let mut bodies = Vec::new();
    for _ in 0..4 {
        bodies.push(within("a delivery", deliveries.recv()).await.unwrap().0);
    }
    bodies.sort();
    assert_eq!(bodies, ["0", "1", "2", "3"]);

    let broken = doc! { "topic": "broken", "body": "4", "sent": false };
    messages.insert_one(broken).await.unwrap();
    let (body, token) = within("the first try", deliveries.recv()).await.unwrap();
    assert_eq!(body, "4");
    let (body, later) = within("the second try", deliveries.recv()).await.unwrap();
    assert_eq!(body, "4");
    assert!(later > token);
    for (stopping, ended) in workers {
        drop(stopping);
        within("the worker ends", ended).await.unwrap().unwrap();
    }
    let open = messages.count_documents(doc! { "sent": false }).await.unwrap();
    assert_eq!(open, 1);
    assert_eq!(
        messages
            .count_documents(doc! { "watchlock.holders.0": { "$exists": true } })
            .await
            .unwrap(),
        0
    );
}

#[tokio::test]
async fn a_message_that_can_not_be_sent_does_not_hold_up_an_outbox() {
    let database = database("poison").await;
    let messages = database.collection::<Document>("outbox");
    let open = || doc! { "sent": false };
    for body in ["poison", "good"] {
        let message = doc! { "_id": body == "good", "topic": "orders", "body": body, "sent": false };
        messages.insert_one(message).await.unwrap();
    }
    let locks = locks(&database).await;
    // All attempts but one, without the rests that a worker makes.
    let claims = locks.documents(messages.clone());
    for attempt in 1..outbox::ATTEMPTS {
        let claim = claims.claim(open()).sort(doc! { "_id": 1 });
        let message = within("a claim", claim.max_attempts(outbox::ATTEMPTS)).await.unwrap();
        assert_eq!(message.attempt(), Some(attempt));
        message.release().await.unwrap();
    }
    let (sent, mut deliveries) = mpsc::unbounded_channel();
    let (stopping, stopped) = stop();
    let send = |message: &outbox::Message, _| {
        sent.send(message.body.clone()).unwrap();
        ready(if message.body == "poison" {
            Err("too large".into())
        } else {
            Ok(())
        })
    };
    let draining = outbox::drain(&locks, database.collection("outbox"), send, stopped);
    let watching = async move {
        for expected in ["poison", "good"] {
            assert_eq!(within("a delivery", deliveries.recv()).await.unwrap(), expected);
        }
        drop(stopping);
    };
    let (drained, ()) = within("the worker ends", async { tokio::join!(draining, watching) }).await;
    drained.unwrap();
    locks.shutdown().await;
    let dead = doc! { "sent": false, "watchlock.attempts": { "$gte": outbox::ATTEMPTS } };
    assert_eq!(
        messages.find_one(dead).await.unwrap().unwrap().get_str("body").unwrap(),
        "poison"
    );
    assert_eq!(messages.count_documents(open()).await.unwrap(), 1);
}

#[tokio::test]
async fn schedulers_of_two_replicas_do_each_job_once_in_a_period() {
    const JOBS: [&str; 2] = ["report", "cleanup"];
    let database = database("cron").await;
    let done = Arc::new(Mutex::new(Vec::new()));
    // So that no window ends meanwhile.
    let (period, offset) = (Duration::from_secs(366 * 24 * 3600), Duration::from_secs(3600));
    let (mut schedulers, mut logs) = (Vec::new(), Vec::new());
    for _ in 0..2 {
        let locks = locks(&database).await;
        for name in JOBS {
            let (log, lines) = mpsc::unbounded_channel();
            let counted = done.clone();
            let job = move |_| {
                counted.lock().unwrap().push(name);
                ready(Ok(()))
            };
            let log = move |line: &str| drop(log.send(line.to_owned()));
            let every_second = "* * * * * *";
            let scheduled = cron::schedule(&locks, name, every_second, period, offset, job, log);
            schedulers.push(scheduled.await.unwrap());
            logs.push(lines);
        }
    }
    // Each has found its job done by the other replica or by itself.
    for lines in &mut logs {
        loop {
            let line = within("a line of the log", lines.recv()).await.unwrap();
            if line.starts_with("done ") {
                assert!(line.contains("the next period begins in "), "{line}");
                break;
            }
            assert!(line == "done" || line.starts_with("in progress: "), "{line}");
        }
    }
    let mut ran = done.lock().unwrap().clone();
    ran.sort_unstable();
    assert_eq!(ran, ["cleanup", "report"]);
    for mut scheduler in schedulers {
        scheduler.shutdown().await.unwrap();
    }
}

#[tokio::test]
async fn a_trace_has_the_waiting_time_of_a_lock_within_the_callers_span() {
    let exporter = InMemorySpanExporter::default();
    let (subscriber, provider) = opentelemetry::exporting("billing", exporter.clone());
    // As a program does it. The spans of the other tests come along.
    tracing::subscriber::set_global_default(subscriber).unwrap();
    let database = database("traces").await;
    let locks = locks(&database).await;
    let billing = async {
        locks
            .mutex("report-7")
            .acquire()
            .await
            .unwrap()
            .release()
            .await
            .unwrap()
    };
    billing.instrument(tracing::info_span!("bill")).await;
    locks.shutdown().await;
    provider.force_flush().unwrap();
    let spans = exporter.get_finished_spans().unwrap();
    let caller = spans.iter().find(|span| span.name == "bill").unwrap();
    let within = |span: &&SpanData| span.parent_span_id == caller.span_context.span_id();
    let acquire = spans.iter().find(within).unwrap_or_else(|| panic!("{spans:?}"));
    assert_eq!(acquire.name, "watchlock.acquire");
    let attribute = |name: &str| acquire.attributes.iter().find(|each| each.key.as_str() == name);
    assert_eq!(attribute("lock").unwrap().value.as_str(), "report-7");
    assert_eq!(attribute("outcome").unwrap().value.as_str(), "granted");
    assert!(
        acquire.events.iter().any(|event| event.name == "lock granted"),
        "{acquire:?}"
    );
    provider.shutdown().unwrap();
}

#[tokio::test]
async fn a_fleet_that_is_switched_takes_the_lock_of_shedlock() {
    let shed = database("shed").await.collection("shedLock");
    let hour = Duration::from_secs(3_600);
    assert!(shedlock::lock(&shed, "report", "a", hour).await.unwrap());
    assert!(!shedlock::lock(&shed, "report", "b", hour).await.unwrap());
    shedlock::unlock(&shed, "report", "b").await.unwrap();
    let others = shedlock::lock(&shed, "report", "b", hour).await.unwrap();
    assert!(!others, "a lock of others is left alone");
    shedlock::unlock(&shed, "report", "a").await.unwrap();
    assert!(shedlock::lock(&shed, "report", "b", hour).await.unwrap());
}

#[tokio::test]
async fn a_fleet_that_is_switched_takes_the_lock_of_dotnet() {
    let locks = database("dotnet").await.collection("distributed_locks");
    let hour = Duration::from_secs(3_600);
    assert!(dotnet::lock(&locks, "report", "a", hour).await.unwrap());
    assert!(!dotnet::lock(&locks, "report", "b", hour).await.unwrap());
    assert!(dotnet::lock(&locks, "report", "a", hour).await.unwrap(), "a renewal");
    let document = locks
        .find_one(doc! { "_id": "report" })
        .await
        .unwrap()
        .expect("it is held");
    assert_eq!(
        document.get_i64("fencingToken").unwrap(),
        1,
        "a renewal is no new grant"
    );
    dotnet::unlock(&locks, "report", "b").await.unwrap();
    let others = dotnet::lock(&locks, "report", "b", hour).await.unwrap();
    assert!(!others, "a lock of others is left alone");
    dotnet::unlock(&locks, "report", "a").await.unwrap();
    assert!(dotnet::lock(&locks, "report", "b", Duration::ZERO).await.unwrap());
    assert!(
        dotnet::lock(&locks, "report", "a", hour).await.unwrap(),
        "after the expiry"
    );
}
