import { spawn } from 'node:child_process'
import { Agent, request } from 'node:http'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import type { Client } from 'pg'
import { connectAdmin } from './support/admin.ts'
import { startCloud, type Cloud } from './support/cloud.ts'
import { formatRate, median } from './support/numbers.ts'
import { pause } from './support/pause.ts'
import type { ResultRow } from './support/report.ts'

const ENDPOINTS = 50
const EVENTS = 200
/** The events are of as many sandboxes. The deliveries of each are sent one after the other. */
const SANDBOXES = 40
const ROUNDS = 3
/** As many as the server has under way for one organization. */
const CONNECTIONS = 64
const GOAL = 1_000
const LIMIT_MS = 120_000

/** Deliveries of events to 50 webhooks, from the commit of the events on, against a bare loop of posts to the same receiver. */
export async function benchWebhooks(): Promise<readonly ResultRow[]> {
  await using cloud = await startCloud({ SANDYARD_DRIVER: 'simulated', SANDYARD_WEBHOOKS_ALLOWED: '127.0.0.1' })
  using receiver = await startReceiver()
  const admin = await connectAdmin(cloud)
  try {
    const org = await addWebhooks(cloud, receiver.port)
    const rounds: { readonly ours: number; readonly limit: number }[] = []
    for (let round = 0; round < ROUNDS; round++) {
      const limit = await bareRate(receiver)
      rounds.push({ ours: await ourRate(admin, org, receiver), limit })
    }
    const ours = median(rounds.map((round) => round.ours))
    return [
      {
        benchmark: 'webhooks',
        what: `deliveries of events to ${String(ENDPOINTS)} webhooks`,
        measured: formatRate(ours),
        limit: `bare posts ${formatRate(median(rounds.map((round) => round.limit)))}`,
        ratio: median(rounds.map((round) => round.ours / round.limit)),
        goal: `>= ${formatRate(GOAL)}`,
        isMet: ours >= GOAL,
        samples: rounds,
      },
    ]
  } finally {
    await admin.end()
  }
}

/** Creates the webhooks. Resolves with the organization. */
async function addWebhooks(cloud: Cloud, port: number): Promise<string> {
  for (let n = 0; n < ENDPOINTS; n++) {
    const hook = { url: `http://127.0.0.1:${String(port)}/${String(n)}`, category: 'sandbox' }
    const { status, body } = await cloud.call('POST', '/v1/webhooks', hook)
    if (status !== 200) throw new Error(`no webhook was made: ${JSON.stringify(body)}`)
  }
  const { body } = await cloud.call('GET', '/v1/me/org')
  return String(body['id'])
}

async function ourRate(admin: Client, org: string, receiver: Receiver): Promise<number> {
  await receiver.read('reset')
  const startedMs = performance.now()
  await admin.query(
    `INSERT INTO events (id, org_id, timestamp, category, event_type, sandbox_id, actor, payload)
     SELECT (lpad(to_hex((extract(epoch FROM clock_timestamp()) * 1000)::bigint), 12, '0') || '7' || lpad(to_hex(n), 3, '0') || '8000' ||
         substr(md5(random()::text), 1, 12))::uuid, $1, now(), 'sandbox', 'sandbox_renamed', s.id,
       '{"kind":"system","code":"sandyard","label":"Sandyard"}',
       json_build_object('sandbox_id', s.id, 'name', 'box-' || n, 'slug', 'quiet-otter-k3f9', 'from', json_build_object('name', 'before'))
     FROM generate_series(1, $2::integer) n,
       LATERAL (SELECT md5((n % $3::integer)::text)::uuid AS id) s`,
    [org, EVENTS, SANDBOXES],
  )
  const wanted = ENDPOINTS * EVENTS
  for (;;) {
    const { posts, messages } = await receiver.read('count')
    if (messages === wanted) {
      if (posts !== wanted) throw new Error(`${String(posts)} posts for ${String(wanted)} messages`)
      return (wanted * 1000) / (performance.now() - startedMs)
    }
    if (performance.now() - startedMs > LIMIT_MS)
      throw new Error(`only ${String(messages)} of ${String(wanted)} arrived`)
    await pause(20)
  }
}

/** Posts as many messages of the same size over as many connections, and nothing else. */
async function bareRate({ port }: Receiver): Promise<number> {
  const agent = new Agent({ keepAlive: true, maxSockets: CONNECTIONS })
  const body = 'x'.repeat(600)
  const headers = { 'content-type': 'application/json', 'content-length': body.length }
  const count = ENDPOINTS * EVENTS
  let next = 0
  const startedMs = performance.now()
  const post = (): Promise<void> =>
    new Promise((resolve, reject) => {
      const outgoing = request({ host: '127.0.0.1', port, path: '/bare', method: 'POST', agent, headers })
      outgoing.on('error', reject)
      outgoing.on('response', (response) => response.resume().on('end', resolve))
      outgoing.end(body)
    })
  await Promise.all(
    Array.from({ length: CONNECTIONS }, async () => {
      while (next++ < count) await post()
    }),
  )
  agent.destroy()
  return (count * 1000) / (performance.now() - startedMs)
}

type Count = { readonly posts: number; readonly messages: number }
type Receiver = { readonly port: number; read(line: 'count' | 'reset'): Promise<Count> } & Disposable

async function startReceiver(): Promise<Receiver> {
  const program = join(import.meta.dirname, 'support/counting-receiver.ts')
  const child = spawn(process.execPath, [program], { stdio: ['pipe', 'pipe', 'inherit'] })
  const endWithUs = (): void => void child.kill('SIGKILL')
  process.once('exit', endWithUs)
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]()
  const port = Number((await lines.next()).value)
  return {
    port,
    async read(line) {
      child.stdin.write(`${line}\n`)
      return JSON.parse((await lines.next()).value ?? '') as Count // counting-receiver.ts wrote it
    },
    [Symbol.dispose]() {
      process.off('exit', endWithUs)
      child.kill('SIGKILL')
    },
  }
}
