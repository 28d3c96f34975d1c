import type { Cloud } from './cloud.ts'

const WARM_UP = 3

/** Repeats work, one at a time. Resolves with the latencies in ms, without the first few. */
export async function sampleLatenciesMs(count: number, work: () => Promise<unknown>): Promise<readonly number[]> {
  const samples: number[] = []
  for (let done = -WARM_UP; done < count; done++) {
    const fromMs = performance.now()
    await work()
    if (done >= 0) samples.push(performance.now() - fromMs)
  }
  return samples
}

/** Fetches a reply that must be 200. Resolves with its bytes. */
export async function fetchBytes(cloud: Cloud, path: string): Promise<Buffer> {
  const reply = await fetch(`http://${cloud.host}:${String(cloud.port)}${path}`, { headers: cloud.headers })
  const bytes = Buffer.from(await reply.arrayBuffer())
  if (reply.status !== 200)
    throw new Error(`${path} was answered ${String(reply.status)}: ${bytes.toString().slice(0, 500)}`)
  return bytes
}
