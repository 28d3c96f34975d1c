import { createServer, type IncomingHttpHeaders } from 'node:http'
import type { AddressInfo } from 'node:net'
import { Webhook } from 'standardwebhooks'

/** A message that a receiver got, verified by the official library. */
export type ReceivedMessage = {
  readonly path: string
  readonly id: string
  readonly type: string
  readonly sandbox_id: string | null
  readonly payload: Readonly<Record<string, unknown>>
  /** The status that it was answered. */
  readonly status: number
}

export type WebhookReceiver = {
  readonly url: string
  /** All messages, in the order in which they were answered. */
  readonly received: readonly ReceivedMessage[]
  /** How many messages no known secret had signed. */
  readonly forged: number
  /** How many connections were made. */
  readonly connections: number
  /** The secrets of each path. */
  readonly secrets: Map<string, readonly string[]>
  close(): Promise<void>
}

type Answer = { readonly status: number; readonly body?: string; readonly headers?: Record<string, string> }

/** Listens on a port of loopback, verifies each message, and answers as `answer` decides. Null: it closes the connection. */
export async function listenForWebhooks(
  answer: (message: Omit<ReceivedMessage, 'status'>, at: number) => Answer | null | Promise<Answer | null> = () => ({
    status: 204,
  }),
  address = '127.0.0.1',
): Promise<WebhookReceiver> {
  const received: ReceivedMessage[] = []
  const secrets = new Map<string, readonly string[]>()
  let [forged, connections, asked] = [0, 0, 0]
  const server = createServer((request, response) => {
    const chunks: Buffer[] = []
    request.on('data', (chunk: Buffer) => chunks.push(chunk))
    request.on('end', () => {
      void (async () => {
        const path = request.url ?? ''
        const body = Buffer.concat(chunks).toString('utf8')
        if (!(secrets.get(path) ?? []).some((secret) => isSigned(secret, body, request.headers))) {
          forged += 1
          response.writeHead(401).end()
          return
        }
        const message: unknown = JSON.parse(body)
        const { type, data } = Object(message)
        const payload = Object(data).payload ?? {}
        const id = String(request.headers['webhook-id'])
        const one = { path, id, type, payload, sandbox_id: Object(payload).sandbox_id ?? null }
        const decided = await answer(one, asked++)
        if (decided === null) {
          response.destroy()
          return
        }
        received.push({ ...one, status: decided.status })
        response.writeHead(decided.status, decided.headers).end(decided.body)
      })()
    })
  })
  server.on('connection', () => (connections += 1))
  await new Promise<void>((resolve) => server.listen(0, address, resolve))
  const { port } = server.address() as AddressInfo
  return {
    url: `http://127.0.0.1:${String(port)}`,
    received,
    secrets,
    get forged() {
      return forged
    },
    get connections() {
      return connections
    },
    close: () =>
      new Promise((resolve) => {
        server.close(() => resolve())
        server.closeAllConnections()
      }),
  }
}

function isSigned(secret: string, body: string, headers: IncomingHttpHeaders): boolean {
  try {
    new Webhook(secret).verify(body, headers as Record<string, string>)
    return true
  } catch {
    return false
  }
}
