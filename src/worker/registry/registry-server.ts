import { createServer, type Server } from 'node:https'
import type { AddressInfo } from 'node:net'
import type { Log } from '../../lib/log.ts'
import { answerPull, type RegistrySource } from './answer-pull.ts'

/** The registry while it listens. */
export type RegistryServer = {
  readonly port: number
  /** The server, whose certificate may be replaced. */
  readonly server: Server
  close(): Promise<void>
}

type RegistryInput = RegistrySource & {
  /** The certificate with its chain, and its key, in PEM. */
  readonly tls: { readonly cert: string; readonly key: string }
  readonly host: string
  /** 0: any free one. */
  readonly port: number
  readonly log: Log
}

/** The most connections at once. A kubelet opens some for each image that it pulls. */
const CONNECTIONS_MAX = 512
/** How long the head of a request, and a connection without progress, may take. */
const HEAD_MS = 10_000
const IDLE_MS = 60_000

/** Serves the images by HTTPS, for reading alone. Rejects if it can't listen. */
export async function openRegistryServer(input: RegistryInput): Promise<RegistryServer> {
  const { tls, host, port, log } = input
  const server = createServer(
    { ...tls, headersTimeout: HEAD_MS, requestTimeout: HEAD_MS, maxHeaderSize: 8 * 1024 },
    (request, reply) => {
      answerPull(input, request, reply).catch((error: unknown) => {
        if (!reply.destroyed || reply.errored === null)
          log.warn({ error, path: request.url }, 'an answer of the registry of loaded images failed')
        reply.destroy()
      })
    },
  )
  server.maxConnections = CONNECTIONS_MAX
  server.setTimeout(IDLE_MS)
  server.on('tlsClientError', (error, { remoteAddress }) => {
    log.debug({ error, remoteAddress }, 'a client of the registry of loaded images broke off')
  })
  await new Promise<void>((resolve, reject) => {
    server.once('error', reject)
    server.listen(port, host, resolve)
  })
  const { port: bound } = server.address() as AddressInfo // it listens on TCP
  return {
    port: bound,
    server,
    close: () =>
      new Promise((resolve) => {
        server.close(() => {
          resolve()
        })
        server.closeAllConnections()
      }),
  }
}
