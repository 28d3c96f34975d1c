import assert from 'node:assert/strict'
import { test } from 'node:test'
import { problemsOf } from '../../src/contract/operation.ts'
import { PROBLEMS } from '../../src/domain/problem.ts'
import { clientError, clientOperations } from '../support/client-errors.ts'

// The public clients choose their errors by code and status. A refusal must not read as something else.

/** Only requests with an `Idempotency-Key` get these, and the public clients never send one. */
const isForKeysAlone = (code: string): boolean => code.startsWith('idempotency_')

const errors = clientOperations().flatMap((operation) =>
  problemsOf(operation)
    .filter((code) => !isForKeysAlone(code))
    .map((code) => ({ route: `${operation.method} ${operation.path}`, code, error: clientError(operation, code) })),
)

test('only a taken name or slug reads as “already exists”, and as the kind of object that exists', () => {
  const existing = errors.filter(({ error }) => error.endsWith('AlreadyExists'))
  assert.deepEqual(
    existing.filter(({ route }) => !route.includes('/v1/snapshots')).map((one) => Object.values(one).join(' ')),
    [
      'POST /v1/sandboxes name_already_exists SandboxAlreadyExists',
      'POST /v1/volumes volume_already_exists VolumeAlreadyExists',
      'POST /v1/sandboxes/{sandbox_id}/fork name_already_exists SandboxAlreadyExists',
    ],
  )
})

test('a 404 reads as the kind of object that the route is about', () => {
  for (const { route, code, error } of errors.filter((one) => PROBLEMS[one.code].status === 404)) {
    const objects = route.includes('/files')
      ? ['VolumeNotFound', 'SandboxFsOps']
      : route.includes('/v1/volumes')
        ? ['VolumeNotFound']
        : route.includes('/v1/snapshot')
          ? ['SnapshotNotFound', 'SandboxNotFound']
          : route === 'POST /v1/sandboxes'
            ? ['SnapshotNotFound']
            : ['SandboxNotFound']
    assert.ok(objects.includes(error), `${route} ${code}: ${error}`)
  }
})

test('a limit, a suspension and a missing right never read as a wrong request or a missing object', () => {
  for (const { code, error } of errors.filter((one) => [401, 403, 429, 503].includes(PROBLEMS[one.code].status)))
    assert.equal(error, code === 'modification_failed' ? 'ModificationNotConfirmed' : 'CloudHttp', code)
})
