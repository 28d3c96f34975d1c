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

/** Fetches a path whose reply must be 200. Resolves with the reply's bytes. */
export async function fetchBytes(cloud: Cloud, path: string): Promise<Buffer> {
  const reply = await fetch(`http://${cloud.host}:${String(cloud.port)}${path}`, { headers: cloud.headers })
  const bytes = Buffer.from(await reply.arrayBuffer())
  if (reply.status !== 200)
    throw new Error(`${path} was answered ${String(reply.status)}: ${bytes.toString().slice(0, 500)}`)
  return bytes
}
