"""`octavo serve MODEL`: the HTTP server around an engine process."""

import argparse
import json
import logging
import re
import time
from typing import TYPE_CHECKING

from octavo.cli.flags import (
    DEFAULT_MODEL,
    Commands,
    add_batch_flags,
    add_chat_template_flag,
    add_engine_flags,
    chat_template_of,
    engine_args,
    served_names,
)
from octavo.cli.parser import spelled
from octavo.cli.streams import drop_output, tell
from octavo.log_format import FORMATS, LEVELS, fields, set_up_logging

if TYPE_CHECKING:
    from octavo.config import ServerSection
    from octavo.config_resolve import Resolution


logger = logging.getLogger("octavo.server")

# scheme://host[:port]; browser extensions and desktop shells have schemes of their own
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://(?:[a-z0-9_.-]+|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?")


def add_parser(commands: Commands) -> None:
    """Adds the subcommand."""
    parser = commands.add_parser("serve", help="serve a model over HTTP, OpenAI-compatible")
    parser.set_defaults(run=run)
    parser.add_argument("model", nargs="?", default=DEFAULT_MODEL, metavar="MODEL",
                        help="GGUF file, Hugging Face folder, alias or hub repo id "
                        "(default %(default)s)")
    group = parser.add_argument_group("server")
    group.add_argument("--host", default="127.0.0.1", help="address (default %(default)s)")
    group.add_argument("--port", type=_port, default=8000, help="port (default %(default)s)")
    group.add_argument("--served-model-name", nargs="+", metavar="NAME",
                       help="names clients use; the first is the one answers carry")
    group.add_argument("--api-key", nargs="+", action="extend", default=[], metavar="KEY",
                       help="keys of which clients must send one as a bearer token")
    group.add_argument("--allowed-origins", nargs="+", default=[], metavar="ORIGIN",
                       help="origins whose web pages may call the server; * is all (default none)")
    group.add_argument("--root-path", default="", metavar="PATH",
                       help="path prefix a proxy in front strips")
    group.add_argument("--no-page", action="store_true",
                       help="no page for browsers at /")
    group.add_argument("--strict-params", action="store_true",
                       help="refuse request fields that are unknown, instead of ignoring them")
    group.add_argument("--shutdown-timeout", type=float, default=30.0, metavar="SECONDS",
                       help="how long Ctrl-C waits for running requests (default %(default)s)")
    group.add_argument("--request-timeout", type=float, default=0.0, metavar="SECONDS",
                       help="end requests that take longer with an error (default: never)")
    group.add_argument("--engine-restarts", type=int, default=1, metavar="N",
                       help="how often in ten minutes an engine that died is started again; then "
                       "the server ends (default %(default)s)")
    group.add_argument("--engine-step-timeout", type=float, default=300.0, metavar="SECONDS",
                       help="a busy engine silent for this long counts as dead; 0: never "
                       "(default %(default)s)")
    _add_observability_flags(parser)
    _add_tool_flags(parser)
    add_chat_template_flag(parser)
    add_engine_flags(parser)
    add_batch_flags(parser)


def _add_observability_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("observability")
    group.add_argument("--log-level", default="info", choices=LEVELS)
    group.add_argument("--log-format", default="text", choices=FORMATS,
                       help="json: one object a line (default %(default)s)")
    group.add_argument("--disable-log-requests", action="store_true",
                       help="no line for each request")
    group.add_argument("--enable-log-requests", action="store_true",
                       help="without effect, for command lines of vLLM: it is on")
    group.add_argument("--disable-log-stats", action="store_true",
                       help="no line of statistics now and then; /metrics stays")
    group.add_argument("--log-interval", type=float, default=10.0, metavar="SECONDS",
                       help="between two lines of statistics, while there is traffic "
                       "(default %(default)s)")
    group.add_argument("--metrics-prefix", default="octavo", metavar="NAME",
                       help="what names of metrics begin with; with vllm, dashboards made for it "
                       "show this server (default %(default)s)")
    group.add_argument("--otlp-traces-endpoint", metavar="URL",
                       help="OpenTelemetry collector that takes OTLP over HTTP, such as "
                       "http://localhost:4318/v1/traces: gets a span for each request (needs the "
                       "extra otel)")


def _add_tool_flags(parser: argparse.ArgumentParser) -> None:
    from octavo.tools.formats import REASONING_PARSER_NAMES, TOOL_PARSER_NAMES

    group = parser.add_argument_group("tools and reasoning")
    group.add_argument("--tool-call-parser", default="auto", choices=TOOL_PARSER_NAMES,
                       metavar="NAME", help="how the model writes tool calls: "
                       f"{', '.join(TOOL_PARSER_NAMES)} (default auto: as its chat template)")
    group.add_argument("--reasoning-parser", default="auto", choices=REASONING_PARSER_NAMES,
                       metavar="NAME", help="how the model writes reasoning: "
                       f"{', '.join(REASONING_PARSER_NAMES)} (default auto)")
    group.add_argument("--enable-auto-tool-choice", action="store_true",
                       help="without effect, for command lines of vLLM: it is always on")


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: give 0 to 65535")
    return int(text)


def run(args: argparse.Namespace) -> int:
    """Serves until stopped; returns the exit status."""
    started = time.monotonic()
    from octavo.engine.async_llm import AsyncLLM
    from octavo.server.app import create_app
    from octavo.server.run import ServerRun, bind_socket, listen
    from octavo.server.tracing import open_tracing

    set_up_logging(args.log_level, args.log_format)
    section = _section(args)
    tracer = open_tracing(args.otlp_traces_endpoint) if args.otlp_traces_endpoint else None
    sock = bind_socket(args.host, args.port)  # first: a port in use should not cost a load
    resolution = _resolve(args, section)
    config = resolution.config
    listen(sock)
    server = ServerRun(config.server, phrase=lambda e: spelled(e.message, args, e.param))
    llm = AsyncLLM.from_config(config, on_death=server.engine_failed)

    def announce() -> None:
        port = sock.getsockname()[1]
        url = f"http://{_shown_host(args.host)}:{port}"
        seconds = time.monotonic() - started
        if args.log_format == "json":
            logger.info("ready after %.1f s on %s", seconds, url, extra=fields({
                "url": url, "model": config.model.served_model_names[0],
                "seconds": round(seconds, 3), "resolved": list(resolution.lines)}))
            return
        lines = _banner(resolution, url, seconds)
        try:
            print(spelled("\n".join(lines), args), flush=True)
        except OSError as error:  # it serves all the same
            drop_output()
            tell(f"octavo: cannot write to standard output: {error.strerror}")

    app = create_app(llm, config.server, allowed_origins=args.allowed_origins,
                     log_requests=not args.disable_log_requests, tracer=tracer, on_ready=announce,
                     on_load_error=server.engine_failed)
    return server.run(app, sock)


def _resolve(args: argparse.Namespace, section: "ServerSection") -> "Resolution":
    from octavo.engine.factory import resolve_args
    from octavo.weights.hub import resolve
    from octavo.weights.model_file import open_model

    if args.served_model_name:
        names = tuple(args.served_model_name)
    else:
        with open_model(resolve(args.model)) as model_file:
            names = served_names(args.model, model_file.name)
    return resolve_args(engine_args(args, names), server=section)


def _section(args: argparse.Namespace) -> "ServerSection":
    from octavo.config import ServerSection
    from octavo.engine.metrics_export import check_prefix
    from octavo.errors import ConfigError

    if not 0 <= args.shutdown_timeout <= 86400:
        raise ConfigError(f"--shutdown-timeout is {args.shutdown_timeout}: give 0 to 86400 seconds")
    for flag, seconds in (("--request-timeout", args.request_timeout),
                          ("--engine-step-timeout", args.engine_step_timeout)):
        if not (seconds == 0 or 0.1 <= seconds <= 86400):
            raise ConfigError(f"{flag} is {seconds}: give 0 (never) or 0.1 to 86400 seconds")
    if not 0 <= args.engine_restarts <= 1000:
        raise ConfigError(f"--engine-restarts is {args.engine_restarts}: give 0 to 1000")
    if not 0.1 <= args.log_interval <= 86400:
        raise ConfigError(f"--log-interval is {args.log_interval}: give 0.1 to 86400 seconds, or "
                          "--disable-log-stats")
    check_prefix(args.metrics_prefix)
    if not args.host.strip():
        raise ConfigError("--host is empty: give an address, such as 127.0.0.1 (this machine) or "
                          "0.0.0.0 (every network)")
    for key in args.api_key:
        if not key:
            raise ConfigError("--api-key is empty: give a key, or leave the flag out")
        if not (key.isascii() and key.isprintable()) or " " in key:
            raise ConfigError("--api-key holds characters that a header cannot carry: give "
                              "printable ASCII without spaces")
    for name in args.served_model_name or ():
        if not name.strip() or not name.isprintable():
            raise ConfigError(f"--served-model-name is {name[:80]!r}: give a name of printable "
                              "characters")
    for origin in args.allowed_origins:
        if origin != "*" and _ORIGIN.fullmatch(origin) is None:
            raise ConfigError(f"--allowed-origins has {origin[:200]!r}: give * or origins as "
                              "browsers send them, such as http://localhost:3000 (no path, no "
                              "slash at the end, lower case)")
    root_path = "/" + args.root_path.strip("/") if args.root_path.strip("/") else ""
    return ServerSection(
        host=args.host, port=args.port, api_keys=tuple(args.api_key),
        chat_template=chat_template_of(args), root_path=root_path,
        strict_params=args.strict_params, serve_page=not args.no_page,
        tool_call_parser=args.tool_call_parser, reasoning_parser=args.reasoning_parser,
        shutdown_timeout_s=args.shutdown_timeout, request_timeout_s=args.request_timeout,
        engine_restarts=args.engine_restarts, engine_step_timeout_s=args.engine_step_timeout,
        metrics_prefix=args.metrics_prefix, log_level=args.log_level, log_format=args.log_format,
        log_interval_s=0.0 if args.disable_log_stats else args.log_interval)


def _banner(resolution: "Resolution", url: str, seconds: float) -> list[str]:
    config = resolution.config
    names, limits = config.model.served_model_names, config.scheduler
    also = f" (also as {', '.join(names[1:])})" if len(names) > 1 else ""
    body = {
        "model": names[0],
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "stream": True,
        # small models ramble at the API's own temperature of 1, up to the end of the context
        "temperature": 0.2,
        "max_tokens": 128,
    }
    key = ' -H "Authorization: Bearer $API_KEY"' if config.server.api_keys else ""
    bounds = (f"context {config.model.max_model_len} tokens, {limits.max_num_seqs} sequences at "
              f"once, {limits.max_num_batched_tokens} tokens a step")
    curl = (f"curl -N {url}/v1/chat/completions -H 'Content-Type: application/json'{key} "
            f"-d '{json.dumps(body)}'")
    return [
        f"Octavo serves {names[0]}{also}",
        *(f"  {line}" for line in resolution.lines),
        f"  {bounds}",
        f"Ready after {seconds:.1f} s on {url} (Ctrl-C stops). Try:",
        "",
        *([f"  open {url}/ in a browser", ""] if config.server.serve_page else []),
        f"  {curl}",
        "",
    ]


def _shown_host(host: str) -> str:
    if host in ("0.0.0.0", "::", ""):
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host
