/**
 * Serves the tests' fake of the Kubernetes API with Pods that run nothing: their agents say that they are ready, and no more. Prints
 * how to reach it as JSON, and ends with its input.
 */
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { startFakeCluster } from '../../test/support/fake-kubernetes.ts'

/** The message `H` of the agent: a length, the type, and number 0. */
const READY = Buffer.from([0, 0, 0, 5, 0x48, 0, 0, 0, 0])
const STDOUT = Buffer.of(1)

const folder = await mkdtemp(join(tmpdir(), 'sandyard-silent-'))
const cluster = await startFakeCluster(folder, {
  run({ metadata: { name } }, self) {
    const state = { running: { startedAt: '2026-01-01T00:00:00Z' } }
    setImmediate(() => {
      self.setStatus(name, { phase: 'Running', containerStatuses: [{ name: 'sandbox', state }] })
    })
  },
  end: () => Promise.resolve(),
  exec(_pod, _command, socket) {
    socket.send(Buffer.concat([STDOUT, READY]))
  },
  log(_pod, _query, reply) {
    reply.end()
  },
  close: () => undefined,
})
process.stdout.write(`${JSON.stringify(cluster.access)}\n`)
process.stdin.resume().once('end', () => {
  void cluster.close().then(() => rm(folder, { recursive: true }))
})
