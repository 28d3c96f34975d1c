import { Agent, get } from 'node:http'
import { buffer } from 'node:stream/consumers'
import type { Cloud } from './cloud.ts'

const WARM_UP = 3

/** Runs `work` repeatedly, one at a time. Resolves with the latencies in ms. The first few are left out. */
export async function sampleLatenciesMs(count: number, work: () => Promise<unknown>): Promise<readonly number[]> {
  const samples: number[] = []
  for (let done = -WARM_UP; done < count; done++) {
    const fromMs = performance.now()
    await work()
    if (done >= 0) samples.push(performance.now() - fromMs)
  }
  return samples
}

/**
 * Fetches a path whose reply must be 200. Resolves with the reply's bytes. `fetch` leaves so much garbage in this process that its
 * collections took up to 20 ms, which counted as the server's (2026-11).
 */
export function fetchBytes({ host, port, headers }: Cloud, path: string): Promise<Buffer> {
  return new Promise((resolve, reject) => {
    get({ host, port, path, headers, agent: KEPT }, (reply) => {
      buffer(reply).then((bytes) => {
        if (reply.statusCode === 200) resolve(bytes)
        else reject(new Error(`${path} was answered ${String(reply.statusCode)}: ${bytes.toString().slice(0, 500)}`))
      }, reject)
    }).on('error', reject)
  })
}

const KEPT = new Agent({ keepAlive: true })
