import { STATUS_CODES, type IncomingHttpHeaders } from 'node:http'

/** Why a preview shows nothing: what is wrong, and what to do. */
export type PreviewRefusal = {
  readonly status: 400 | 401 | 403 | 404 | 409 | 429 | 502 | 503
  readonly code: string
  readonly message: string
  /** What the reader can do. */
  readonly remedy: string
}

export const PRIVATE: PreviewRefusal = {
  status: 401,
  code: 'preview_private',
  message: 'This preview is private, or it does not exist.',
  remedy: 'Open it by its link, or send an API key of its organization as a bearer token.',
}

export const NO_PREVIEW: PreviewRefusal = {
  status: 404,
  code: 'preview_not_found',
  message: 'This is not the name of a preview.',
  remedy: 'A preview is at http://PORT-SLUG.DOMAIN, such as http://3000-quiet-otter.localhost:8080.',
}

export const UPGRADE_WITH_BODY: PreviewRefusal = {
  status: 400,
  code: 'invalid_request',
  message: 'A request for an upgrade has no body.',
  remedy: 'Send the body after the upgrade.',
}

/** The refusal while a sandbox does not run. */
export function notRunning(name: string, status: string): PreviewRefusal {
  return {
    status: 409,
    code: 'sandbox_not_running',
    message: `The sandbox '${name}' is ${status}.`,
    remedy: 'Start it, then load this page again.',
  }
}

/** The refusal while nothing accepts connections at a port. */
export function nothingListens(name: string, port: number): PreviewRefusal {
  return {
    status: 502,
    code: 'nothing_listens',
    message: `Nothing listens on port ${String(port)} in the sandbox '${name}'.`,
    remedy: `Start a server there on port ${String(port)}, at 127.0.0.1 or at all addresses, then load this page again.`,
  }
}

/** The refusal when what listens at a port doesn't answer with HTTP, or ends the connection. */
export function brokenReply(name: string, port: number): PreviewRefusal {
  return {
    status: 502,
    code: 'no_http_reply',
    message: `What listens on port ${String(port)} in the sandbox '${name}' gave no HTTP reply.`,
    remedy: 'Look at its output, and at the log of the sandbox.',
  }
}

export const BUSY: PreviewRefusal = {
  status: 503,
  code: 'preview_busy',
  message: 'The sandbox has too many open requests.',
  remedy: 'Load this page again in a moment.',
}

export const UNREACHABLE: PreviewRefusal = {
  status: 503,
  code: 'sandbox_unreachable',
  message: 'The sandbox can not be reached now.',
  remedy: 'Load this page again in a moment.',
}

/** A refusal as a reply: a page for browsers, else JSON. */
export function renderRefusal(
  refusal: PreviewRefusal,
  accept: IncomingHttpHeaders['accept'],
): { readonly status: number; readonly headers: Readonly<Record<string, string>>; readonly body: string } {
  const isPage = (accept ?? '').includes('text/html')
  const { status, code, message, remedy } = refusal
  const body = isPage
    ? page(refusal)
    : JSON.stringify({ error: { code, message: `${message} ${remedy}`, details: null } })
  return {
    status,
    headers: {
      'content-type': isPage ? 'text/html; charset=utf-8' : 'application/json',
      'content-length': String(Buffer.byteLength(body)),
      'cache-control': 'no-store',
      'x-sandyard-preview': code,
      ...(status === 401 ? { 'www-authenticate': 'Bearer' } : {}),
      ...(status === 503 ? { 'retry-after': '1' } : {}),
      ...(isPage ? { 'content-security-policy': "default-src 'none'; style-src 'unsafe-inline'" } : {}),
    },
    body,
  }
}

function page({ status, message, remedy }: PreviewRefusal): string {
  const title = `${String(status)} ${STATUS_CODES[status] ?? ''}`
  return `<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>${title}</title>
<style>body{font:16px/1.5 system-ui,sans-serif;max-width:34rem;margin:15vh auto;padding:0 1rem;color:#222;background:#fff}
h1{font-size:1.25rem}p{margin:.5rem 0}small{color:#666}@media(prefers-color-scheme:dark){body{color:#ddd;background:#161616}small{color:#999}}</style></head>
<body><h1>${escapeHtml(message)}</h1><p>${escapeHtml(remedy)}</p><p><small>${title} · Sandyard preview</small></p></body></html>
`
}

function escapeHtml(text: string): string {
  return text.replace(/[&<>"']/g, (char) => `&#${String(char.charCodeAt(0))};`)
}
