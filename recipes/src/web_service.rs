//! A web service whose requests exclude each other, with a page for its operators and a graceful shutdown.

use std::time::Duration;

use axum::{
    Json, Router,
    extract::{Path, State},
    http::StatusCode,
    routing::{get, post},
};
use mongodb::Database;
use tokio::net::TcpListener;
use watchlock::{FencingToken, LockClient, errors::AcquireError, operate::LockInfo};

type Error = Box<dyn std::error::Error + Send + Sync>;

/// An answer that is not a success.
type Refusal = (StatusCode, &'static str);

/// Serves until `stop` is ready; then the requests that have begun are answered, and all locks are released.
pub async fn serve(
    listener: TcpListener,
    database: Database,
    stop: impl Future<Output = ()> + Send + 'static,
) -> Result<(), Error> {
    let locks = LockClient::builder(database.clone()).label("billing").build().await?;
    let app = Router::new()
        .route("/invoices/{id}", post(bill))
        .route("/admin/locks", get(list))
        .with_state(locks.clone());
    let served = axum::serve(listener, app).with_graceful_shutdown(stop).await;
    // The driver last: the locks need it.
    locks.shutdown().await;
    database.client().clone().shutdown().await;
    Ok(served?)
}

async fn bill(State(locks): State<LockClient>, Path(id): Path<String>) -> Result<String, Refusal> {
    let invoice = locks.mutex(format!("invoice-{id}"));
    // Shorter than the time that a shutdown may take: it waits for this request.
    let turn = invoice.acquire().timeout(Duration::from_secs(5)).reason("billing");
    let billed = turn.run(async |held| bill_invoice(&id, held.token()).await).await;
    billed.map_err(|error| {
        // The error names the holder, its host and its reason: that is for the log, and not for the caller.
        println!("{} was not billed: {error}", invoice.name());
        refusal(&error)
    })
}

/// Returns what a caller may know of an error.
pub fn refusal(error: &AcquireError) -> Refusal {
    match error {
        AcquireError::Timeout { .. } => (StatusCode::CONFLICT, "it is being billed"),
        AcquireError::Invalid(_) => (StatusCode::BAD_REQUEST, "this is no id of an invoice"),
        // The work was dropped at an await point, so a part of it may be done.
        AcquireError::Lost(_) => (StatusCode::INTERNAL_SERVER_ERROR, "it may be billed in part"),
        // Nothing was begun: the server did not answer, or this service is shutting down.
        _ => (StatusCode::SERVICE_UNAVAILABLE, "try again later"),
    }
}

/// What the service does: here nothing.
async fn bill_invoice(id: &str, token: FencingToken) -> String {
    format!("invoice {id} is billed under token {token}\n")
}

/// For operators only: keep it off the public port.
async fn list(State(locks): State<LockClient>) -> Result<Json<Vec<LockInfo>>, Refusal> {
    let listed = locks.list().held(true).await;
    listed.map(Json).map_err(|error| {
        println!("locks can't be listed: {error}");
        (StatusCode::SERVICE_UNAVAILABLE, "try again later")
    })
}
