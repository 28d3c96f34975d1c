import assert from 'node:assert/strict'
import { once } from 'node:events'
import { PassThrough } from 'node:stream'
import { test } from 'node:test'
import { connectByProcess } from '../../../../src/worker/drivers/shared/tcp-stream.ts'

test('a process that has ended before its output is read reports why it failed', async () => {
  const [stdin, stdout, stderr] = [new PassThrough(), new PassThrough(), new PassThrough()]
  stdout.end()
  stdout.resume()
  await once(stdout, 'close')
  stderr.end('failed connect 192.0.2.1:9: Network is unreachable (os error 101)\n')
  const start = () =>
    Promise.resolve({ pid: 1, stdin, stdout, stderr, signal: () => undefined, resize: () => undefined, exited: Promise.resolve(1) }) // prettier-ignore
  await assert.rejects(connectByProcess(start, { host: '192.0.2.1', port: 9 }, AbortSignal.timeout(5_000)), /Network is unreachable/) // prettier-ignore
})
