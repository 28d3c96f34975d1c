import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'

/** The built dashboard. `files` has the content of each file under its URL path, such as `/assets/main-a1b2.js`. */
export type Dashboard = { readonly page: DashboardFile; readonly files: ReadonlyMap<string, DashboardFile> }

/** A file, and the same compressed if the build made that. */
export type DashboardFile = {
  readonly type: string
  readonly content: Buffer
  readonly br: Buffer | null
  readonly gzip: Buffer | null
}

/**
 * The page loads nothing from elsewhere, runs no script and takes no style that is not one of its files, and is shown in no
 * frame. `blob:` is for downloads only.
 */
const CONTENT_SECURITY_POLICY = [
  "default-src 'none'",
  "script-src 'self'",
  "style-src 'self'",
  "img-src 'self'",
  "connect-src 'self'",
  "base-uri 'none'",
  "form-action 'self'",
  "frame-ancestors 'none'",
  "require-trusted-types-for 'script'",
  "trusted-types 'none'",
].join('; ')

const PAGE_HEADERS = {
  'content-security-policy': CONTENT_SECURITY_POLICY,
  'cross-origin-opener-policy': 'same-origin',
  'permissions-policy': 'camera=(), geolocation=(), microphone=()',
  'referrer-policy': 'no-referrer',
  'x-content-type-options': 'nosniff',
  'cache-control': 'no-store',
}
/** A file never changes, because its name has a hash of its content. */
const FILE_HEADERS = {
  'x-content-type-options': 'nosniff',
  'cross-origin-resource-policy': 'same-origin',
  'cache-control': 'public, max-age=31536000, immutable',
}

/** Adds the page of the dashboard at `/`, and its files. They need no session: the page has no data. */
export function addDashboardRoutes(app: FastifyInstance, { page, files }: Dashboard): void {
  app.get('/', (request, reply) => send({ request, reply }, page, PAGE_HEADERS))
  for (const [path, file] of files) app.get(path, (request, reply) => send({ request, reply }, file, FILE_HEADERS))
}

type Exchange = { readonly request: FastifyRequest; readonly reply: FastifyReply }

/**
 * Answers a browser's request for a path without a route with the page, which has paths of its own. Returns null for other
 * requests: those of programs, and those below the paths of the API.
 */
export function sendPage({ page }: Dashboard, { request, reply }: Exchange): FastifyReply | null {
  const { method, url, headers } = request
  const isForBrowser = (method === 'GET' || method === 'HEAD') && headers.accept?.includes('text/html') === true
  return isForBrowser && !/^\/(?:v1|auth|worker|assets)\//.test(url)
    ? send({ request, reply }, page, PAGE_HEADERS)
    : null
}

function send({ request, reply }: Exchange, file: DashboardFile, headers: Readonly<Record<string, string>>) {
  const accepted = String(request.headers['accept-encoding'] ?? '')
  const encoding = file.br !== null && /\bbr\b/.test(accepted) ? 'br' : /\bgzip\b/.test(accepted) ? 'gzip' : null
  const content = encoding === null ? null : file[encoding]
  reply.headers({ ...headers, 'content-type': file.type, vary: 'accept-encoding' })
  return content === null ? reply.send(file.content) : reply.header('content-encoding', encoding).send(content)
}
