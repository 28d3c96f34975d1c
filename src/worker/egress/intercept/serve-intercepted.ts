import type { Socket } from 'node:net'
import { TLSSocket } from 'node:tls'
import type { RunSecret } from '../../../domain/spec/secrets.ts'
import type { BodyBudget } from './body-budget.ts'
import { judgeSecrets } from './host-secrets.ts'
import type { LeafCertificates } from './leaf-certificates.ts'
import { renderDenial, RequestRefused } from './request-refused.ts'
import { makeRequestStream, type RequestStream } from './request-stream.ts'
import { makeUpgradeReader } from './upgrade-response.ts'
import type { UpstreamConnector } from './upstream-tls.ts'

export type InterceptedConnection = {
  /** The connection of the sandbox. Bytes that were read from it to judge it are put back with `unshift`. */
  readonly client: Socket
  /** The server name of the handshake in lower case, if it has one. */
  readonly sni: string | null
  readonly destination: { readonly address: string; readonly port: number }
  /** The names that the sandbox's own DNS answers tie to the destination. */
  readonly tiedNames: readonly string[]
  readonly secrets: readonly RunSecret[]
  /** Shared by all connections of the process. */
  readonly budget: BodyBudget
  /** Null for plain HTTP. */
  readonly tls: { readonly certificates: LeafCertificates; readonly upstream: UpstreamConnector } | null
  /** Whether the network policy allows requests to a host. */
  readonly allowsHost: (host: string) => boolean
  /** Connects to the destination, through the rules of the packet filter. */
  readonly dial: () => Promise<Socket>
  /** Is told once why the connection was cut, if a request was refused. */
  readonly onRefused: (refused: RequestRefused) => void
}

const HANDSHAKE_LIMIT_MS = 30_000
const DENIAL_LIMIT_MS = 2_000
/** How long one side may be silent after the other side ended. */
const HALF_CLOSED_LIMIT_MS = 60_000

/** Serves an intercepted connection until its end. It never rejects: whatever fails ends the connection. */
export async function serveIntercepted(connection: InterceptedConnection): Promise<void> {
  const { client, destination, onRefused } = connection
  const host = connection.sni ?? destination.address
  let guest: Socket = client
  let upstream: Socket | null = null
  let hasResponse = false
  client.on('error', () => client.destroy())
  client.on('close', () => upstream?.destroy())
  const stream = makeRequestStream({
    authority: connection.tls === null ? null : host,
    budget: connection.budget,
    secretsFor: rememberLast((name) => {
      if (!connection.allowsHost(name)) throw new RequestRefused('a host that the policy denies', { isByPolicy: true })
      return judgeSecrets(connection.secrets, { ...factsOf(connection), host: name })
    }),
  })
  const upgrade = Promise.withResolvers<boolean>()
  try {
    if (connection.tls !== null) guest = await acceptTls(client, host, connection.tls.certificates)
    let response: Promise<void> | null = null
    for await (const bytes of guest.iterator({ destroyOnReturn: false }) as AsyncIterable<Buffer>) {
      const output = stream.push(bytes)
      if (stream.takeContinue() && !hasResponse) guest.write('HTTP/1.1 100 Continue\r\n\r\n')
      if (output.length === 0) continue
      upstream ??= await connectUpstream(connection, host)
      if (guest.destroyed) break
      response ??= relayResponses(upstream, guest, { onBegin: noteResponse, onUpgrade: upgrade.resolve })
      await writeAll(upstream, output)
      if (stream.awaitsUpgrade()) await writeAll(upstream, stream.finishUpgrade(await upgrade.promise))
    }
    upstream?.setTimeout(HALF_CLOSED_LIMIT_MS, () => upstream?.destroy())
    upstream?.end()
    await response
  } catch (error) {
    if (error instanceof RequestRefused) {
      upstream?.destroy()
      onRefused(error)
      if (!hasResponse) await deny(guest, stream, error)
    }
  } finally {
    stream.close()
    upstream?.destroy()
    guest.destroy()
    client.destroy()
  }

  function noteResponse(): void {
    hasResponse = true
  }
}

function factsOf({ tiedNames, tls, sni, destination }: InterceptedConnection) {
  return { tiedNames, isVerified: tls !== null && tls.upstream.verifies(sni ?? destination.address) }
}

/** The requests of a connection mostly name one host. */
function rememberLast<Result>(judge: (host: string) => Result): (host: string) => Result {
  let last: { readonly host: string; readonly result: Result } | null = null
  return (host) => {
    if (last?.host !== host) last = { host, result: judge(host) }
    return last.result
  }
}

async function acceptTls(client: Socket, host: string, certificates: LeafCertificates): Promise<TLSSocket> {
  const secureContext = await certificates.contextFor(host)
  const guest = new TLSSocket(client, { isServer: true, secureContext })
  guest.on('error', () => guest.destroy())
  const timer = setTimeout(() => guest.destroy(), HANDSHAKE_LIMIT_MS)
  await firstOf(guest, ['secure', 'close'])
  clearTimeout(timer)
  return guest
}

async function connectUpstream({ dial, tls }: InterceptedConnection, host: string): Promise<Socket> {
  const socket = await dial()
  socket.on('error', () => socket.destroy())
  const upstream = tls === null ? socket : await tls.upstream.connect(socket, host)
  upstream.on('error', () => upstream.destroy())
  return upstream
}

type ResponseEvents = { readonly onBegin: () => void; readonly onUpgrade: (isAccepted: boolean) => void }

/** Copies responses unchanged. */
async function relayResponses(upstream: Socket, guest: Socket, { onBegin, onUpgrade }: ResponseEvents): Promise<void> {
  const readUpgrade = makeUpgradeReader()
  let answer: boolean | null = null
  try {
    for await (const bytes of upstream.iterator({ destroyOnReturn: false }) as AsyncIterable<Buffer>) {
      onBegin()
      if (answer === null) {
        answer = readUpgrade(bytes)
        if (answer !== null) onUpgrade(answer)
      }
      await writeAll(guest, [bytes])
    }
    guest.setTimeout(HALF_CLOSED_LIMIT_MS, () => guest.destroy())
    guest.end()
  } catch {
    guest.destroy()
  } finally {
    onUpgrade(false)
  }
}

async function writeAll(socket: Socket, parts: readonly Buffer[]): Promise<void> {
  if (parts.length === 0) return
  socket.cork()
  const isFree = parts.map((part) => socket.write(part)).at(-1)
  socket.uncork()
  if (isFree === false && !socket.destroyed) await firstOf(socket, ['drain', 'close'])
  if (socket.destroyed) throw new Error('the connection was closed')
}

/** Waits for one of several events, and leaves no listener behind. */
function firstOf(socket: Socket, events: readonly string[]): Promise<void> {
  const { promise, resolve } = Promise.withResolvers<void>()
  const finish = (): void => {
    for (const event of events) socket.off(event, finish)
    resolve()
  }
  for (const event of events) socket.on(event, finish)
  return promise
}

/** Only the first request of a connection is answered, because a response to another one may be under way. */
async function deny(guest: Socket, stream: RequestStream, refused: RequestRefused): Promise<void> {
  const { context, violation } = refused
  if (stream.requests() !== 1 || context.method === null || context.method === 'HEAD') return
  if (violation?.action === 'block_and_terminate') return
  guest.end(renderDenial(refused))
  // Closing with unread bytes would reset the connection, and the client would lose the reply.
  guest.resume()
  const timer = setTimeout(() => guest.destroy(), DENIAL_LIMIT_MS)
  await firstOf(guest, ['end', 'close'])
  clearTimeout(timer)
}
