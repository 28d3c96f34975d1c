import type { IncomingMessage, ServerResponse } from 'node:http'
import type { Duplex } from 'node:stream'
import {
  makeFindPreview,
  rightToPreview,
  type PreviewedSandbox,
  type PreviewRight,
} from '../control/previews/find-preview.ts'
import type { ControlDeps } from '../control/make-deps.ts'
import type { AuthenticationRateLimiter } from '../control/requests/request-rate-limiter.ts'
import { LINK_PARAMETER, LINK_PREFIX, parsePreviewHost, type PreviewTarget } from '../domain/previews/preview.ts'
import type { RunId, WorkerId } from '../domain/ids.ts'
import { Problem } from '../domain/problem.ts'
import { joinSignals } from '../lib/join-signals.ts'
import { makePiecePacer } from '../lib/turns/piece-pacer.ts'
import { rateLimitAddress } from '../lib/rate-limit-address.ts'
import { ConnectFailure } from '../channel-client/tcp.ts'
import { linkCookieOf, type ForwardedBy } from './proxy-headers.ts'
import { openConnection } from './open-connection.ts'
import { hasBody, proxyRequest, proxyUpgrade, type ProxiedRequest } from './proxy-request.ts'
import {
  brokenReply, BUSY, NO_PREVIEW, notRunning, nothingListens, PRIVATE, renderRefusal, UNREACHABLE, UPGRADE_WITH_BODY, type PreviewRefusal,
} from './refusal.ts' // prettier-ignore
import { makeSandboxConnections } from './sandbox-connections.ts'
import { KNOWN_MS, watchPreview } from './watch-preview.ts'

type PreviewProxyInput = {
  readonly control: ControlDeps
  /** The domain beneath which previews are. */
  readonly domain: string
  readonly scheme: 'http' | 'https'
  readonly addressOf: (request: IncomingMessage) => string | undefined
  readonly rates?: AuthenticationRateLimiter
}

/** Serves the ports of sandboxes at names of their own, such as `3000-quiet-otter.localhost`. */
export type PreviewProxy = {
  /** Whether a request is for a name beneath the domain of previews. The API is never served there. */
  matches(request: IncomingMessage): boolean
  serve(request: IncomingMessage, response: ServerResponse): void
  upgrade(request: IncomingMessage, socket: Duplex, head: Buffer): void
  close(): void
}

/** A sandbox whose run has a worker. `run` names its connections. */
type RunningSandbox = Omit<PreviewedSandbox, 'run_id' | 'worker_id'> & {
  readonly run: string
  readonly run_id: RunId
  readonly worker_id: WorkerId
}

/** A request that may go on. */
type Admitted = {
  readonly kind: 'admitted'
  readonly sandbox: RunningSandbox
  readonly right: PreviewRight
  /** Whether the `authorization` header has a key of this service. */
  readonly hasKey: boolean
  readonly target: PreviewTarget
  /** The secret of a link that was in the URL. */
  readonly linked: string | null
  readonly path: string
}
type Refused = { readonly kind: 'refused'; readonly refusal: PreviewRefusal }

const BEARER = /^bearer +([A-Za-z0-9._~+/=-]{1,512}) *$/i

/** Makes the proxy of a process. */
export function makePreviewProxy({ control, domain, scheme, addressOf, rates }: PreviewProxyInput): PreviewProxy {
  const find = makeFindPreview(control)
  const pacer = makePiecePacer()
  const connections = makeSandboxConnections<Admitted['sandbox']>({
    connect: (sandbox, port) => openConnection({ ...control, pacer }, sandbox, port),
    clock: control.clock,
    paceOf: ({ org_id }) => pacer.paceOf(org_id),
  })
  /** Ends what `connections` no longer has: sockets that were upgraded. */
  const closing = new AbortController()

  async function admit(request: IncomingMessage): Promise<Admitted | Refused> {
    const target = parsePreviewHost(request.headers.host ?? '', domain)
    if (typeof target === 'string') return { kind: 'refused', refusal: NO_PREVIEW }
    const { path, secret: linked } = withoutSecret(request.url ?? '/')
    const address = rateLimitAddress(addressOf(request))
    const credentials = {
      key: BEARER.exec(request.headers.authorization ?? '')?.[1] ?? null,
      secret: linked ?? linkCookieOf(request.headers.cookie),
      onUnknownKey: () => rates?.checkFailedAuthentications(address),
    }
    let sandbox = await find(target, KNOWN_MS)
    let { right, hasKey } = await rightToPreview(control, sandbox, credentials)
    if (right === null || sandbox?.status !== 'running') {
      sandbox = await find(target, REFUSED_MS)
      ;({ right, hasKey } = await rightToPreview(control, sandbox, credentials))
    }
    if (sandbox === null || right === null) {
      if (request.headers.authorization !== undefined || linked !== null) rates?.countFailedAuthentication(address)
      return { kind: 'refused', refusal: PRIVATE }
    }
    const { run_id, worker_id } = sandbox
    if (sandbox.status !== 'running' || run_id === null || worker_id === null)
      return { kind: 'refused', refusal: notRunning(sandbox.name, sandbox.status) }
    return {
      kind: 'admitted',
      sandbox: { ...sandbox, run: run_id, run_id, worker_id },
      right,
      hasKey,
      target,
      linked,
      path,
    }
  }

  /** Lets an admitted request through. `send` does the exchange. Resolves with why there was none, or null. */
  async function pass(
    request: IncomingMessage,
    { sandbox, right, hasKey, target, path }: Admitted,
    send: (proxied: ProxiedRequest) => Promise<void>,
  ): Promise<PreviewRefusal | null> {
    const used = connections.use(sandbox)
    if (used === null) return BUSY
    const watch = watchRight(right, sandbox, target)
    const forwarded: ForwardedBy = {
      address: addressOf(request),
      scheme,
      host: request.headers.host ?? '',
      hidesAuthorization: hasKey,
    }
    try {
      await send({ request, path, port: target.port, agent: used.agent, forwarded, signal: watch.signal })
      return null
    } catch (error) {
      if (error instanceof ConnectFailure) return nothingListens(sandbox.name, target.port)
      if (error instanceof Problem) return { ...UNREACHABLE, message: `${UNREACHABLE.message} (${error.message})` }
      control.log.debug({ error, sandbox_id: sandbox.id }, 'a preview got no reply')
      return brokenReply(sandbox.name, target.port)
    } finally {
      watch.stop()
      used.release()
    }
  }

  async function passUpgrade(request: IncomingMessage, socket: Duplex, head: Buffer): Promise<PreviewRefusal | null> {
    const admitted = await admit(request)
    if (admitted.kind === 'refused') return admitted.refusal
    if (hasBody(request)) return UPGRADE_WITH_BODY
    return await pass(request, admitted, async (proxied) => {
      using either = joinSignals(closing.signal, proxied.signal)
      await proxyUpgrade({ ...proxied, signal: either.signal }, socket, head)
    })
  }

  /** Watches whether a request may go on: long ones end when their right does. */
  function watchRight(right: PreviewRight, { id: sandbox_id }: RunningSandbox, target: PreviewTarget) {
    if (right.by === 'key') return control.callerWatcher.watch(right.caller)
    return watchPreview({ ...control, find }, { ...right, sandbox_id, target })
  }

  return {
    matches: ({ headers }) => parsePreviewHost(headers.host ?? '', domain) !== 'other',
    serve(request, response) {
      void (async () => {
        const admitted = await admit(request)
        if (admitted.kind === 'refused') return refuse(request, response, admitted.refusal)
        const { linked, right, path } = admitted
        if (linked !== null && right.by === 'preview' && right.isLink && isRead(request))
          return redirect(response, { path, secret: linked, scheme })
        const refusal = await pass(request, admitted, (proxied) => proxyRequest(proxied, response))
        return refusal === null ? undefined : refuse(request, response, refusal)
      })().catch((error: unknown) => {
        refuse(request, response, refusalOf(error))
      })
    },
    upgrade(request, socket, head) {
      socket.on('error', () => socket.destroy())
      void (async () => {
        const refusal = await passUpgrade(request, socket, head)
        if (refusal !== null) refuseSocket(socket, refusal)
      })().catch((error: unknown) => {
        refuseSocket(socket, refusalOf(error))
      })
    },
    close() {
      closing.abort(new Error('the server is closing'))
      connections.close()
    },
  }

  /** The refusal for an error before a request went on to a sandbox. */
  function refusalOf(error: unknown): PreviewRefusal {
    if (error instanceof Problem && error.code === 'rate_limited')
      return { ...BUSY, status: 429, code: 'rate_limited', message: error.message }
    control.log.error({ error }, 'a preview failed')
    return UNREACHABLE
  }
}

/** How long what was read of a preview refuses requests. It may have changed just now, so this only joins requests that come together. */
const REFUSED_MS = 5

function isRead({ method }: IncomingMessage): boolean {
  return method === 'GET' || method === 'HEAD'
}

/** Takes the secret of a link out of a URL. */
function withoutSecret(url: string): { readonly path: string; readonly secret: string | null } {
  const [path = '/', query] = url.split(/\?(.*)/s, 2)
  if (query === undefined || !query.includes(LINK_PARAMETER)) return { path: url, secret: null }
  const parts = query.split('&')
  const isSecret = (part: string): boolean => part.startsWith(`${LINK_PARAMETER}=${LINK_PREFIX}`)
  const rest = parts.filter((part) => !isSecret(part)).join('&')
  const secret = parts.find(isSecret)?.slice(LINK_PARAMETER.length + 1) ?? null
  return { path: rest === '' ? path : `${path}?${rest}`, secret }
}

/** Keeps the secret of a link as a cookie of this preview, and loads the page without it in the URL. */
function redirect(
  response: ServerResponse,
  { path, secret, scheme }: { readonly path: string; readonly secret: string; readonly scheme: string },
): void {
  const cookie = `${LINK_PARAMETER}=${secret}; Path=/; HttpOnly; SameSite=Lax${scheme === 'https' ? '; Secure' : ''}`
  // Two slashes at the beginning would lead to another host.
  const location = path.replace(/^\/+/, '/')
  const headers = { location, 'set-cookie': cookie, 'referrer-policy': 'no-referrer', 'cache-control': 'no-store' }
  response.writeHead(302, { ...headers, 'content-length': '0' }).end()
}

function refuse({ headers: { accept } }: IncomingMessage, response: ServerResponse, refusal: PreviewRefusal): void {
  if (response.headersSent) {
    response.destroy()
    return
  }
  const { status, headers, body } = renderRefusal(refusal, accept)
  response.writeHead(status, { ...headers, connection: 'close' }).end(body)
}

const LINGER_MS = 2_000

function refuseSocket(socket: Duplex, refusal: PreviewRefusal): void {
  if (!socket.writable) return
  const { status, headers, body } = renderRefusal(refusal, undefined)
  const lines = Object.entries({ ...headers, connection: 'close' }).map(([name, value]) => `${name}: ${value}\r\n`)
  socket.end(`HTTP/1.1 ${String(status)} \r\n${lines.join('')}\r\n${body}`)
  setTimeout(() => socket.destroy(), LINGER_MS).unref()
}
