import assert from 'node:assert/strict'
import { once } from 'node:events'
import { copyFileSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:https'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { json } from 'node:stream/consumers'
import { after, before, test } from 'node:test'
import { joiningPods } from '../../src/cli/server/joining-pods.ts'
import { makeReviewToken } from '../../src/cli/server/review-tokens.ts'
import { JOIN_SETTINGS } from '../../src/settings/join.ts'
import { makeCertificate } from '../support/certificates.ts'

// An HTTPS server that answers as the API server of Kubernetes does. `npm run test:kubernetes` asks a real one.

const ACCOUNT = 'cloud/cloud-worker'
const folder = mkdtempSync(join(tmpdir(), 'sandyard-review-'))
let answer: { readonly status: number; readonly body: unknown } = { status: 500, body: {} }
let asked: { readonly path: string | undefined; readonly authorization: string | undefined; readonly body: unknown }
let server: ReturnType<typeof createServer>

before(async () => {
  const { caFile, certFile, keyFile } = await makeCertificate(folder)
  copyFileSync(caFile, join(folder, 'ca.crt'))
  writeFileSync(join(folder, 'token'), 'own-token\n')
  server = createServer({ cert: readFileSync(certFile), key: readFileSync(keyFile) }, (request, response) => {
    void json(request).then((body) => {
      asked = { path: request.url, authorization: request.headers.authorization, body }
      response.writeHead(answer.status, { 'content-type': 'application/json' }).end(JSON.stringify(answer.body))
    })
  }).listen(0, '127.0.0.1')
  await once(server, 'listening')
})
after(() => {
  server.close()
  rmSync(folder, { recursive: true })
})

const review = (token: string) => {
  const { port } = server.address() as AddressInfo
  return makeReviewToken({ accounts: [ACCOUNT, 'cloud/cloud-driver'], host: '127.0.0.1', port, folder })(token)
}
const user = {
  username: 'system:serviceaccount:cloud:cloud-worker',
  extra: {
    'authentication.kubernetes.io/node-name': ['node-1'],
    'authentication.kubernetes.io/pod-name': ['cloud-worker-x2f9z'],
  },
}
const known = { authenticated: true, audiences: ['sandyard'], user }

test('each service account of the setting may join, and a list with a wrong name is refused as a whole', async () => {
  const driver = { ...user, username: 'system:serviceaccount:cloud:cloud-driver' }
  answer = { status: 201, body: { status: { ...known, user: driver } } }
  assert.deepEqual((await review('ey.a.b'))?.names.length, 2)
  const { parse } = JOIN_SETTINGS.joinServiceAccounts
  assert.deepEqual(parse('cloud/cloud-worker,cloud/cloud-driver'), { value: [ACCOUNT, 'cloud/cloud-driver'] })
  for (const seen of ['cloud/cloud-worker,', 'cloud', 'cloud/a, cloud/b']) assert.ok('accepted' in parse(seen), seen)
})

test('a token of the service account may take the names of its Pod and of its node', async () => {
  answer = { status: 201, body: { status: known } }
  assert.deepEqual(await review('ey.a.b'), { names: ['node-1', 'cloud-worker-x2f9z'] })
  assert.deepEqual(asked, {
    path: '/apis/authentication.k8s.io/v1/tokenreviews',
    authorization: 'Bearer own-token',
    body: {
      apiVersion: 'authentication.k8s.io/v1',
      kind: 'TokenReview',
      spec: { token: 'ey.a.b', audiences: ['sandyard'] },
    },
  })
})

for (const [what, status] of [
  ['that is unknown or has expired', { authenticated: false, error: 'expired' }],
  ['for another audience', { ...known, audiences: ['https://kubernetes.default.svc'] }],
  ['of another service account', { ...known, user: { ...user, username: 'system:serviceaccount:cloud:default' } }],
  [
    'of an account of the same name elsewhere',
    { ...known, user: { ...user, username: 'system:serviceaccount:x:cloud-worker' } },
  ],
  ['of a person', { ...known, user: { username: 'cloud-worker' } }],
] as const)
  test(`a token ${what} is refused`, async () => {
    answer = { status: 201, body: { status } }
    assert.equal(await review('ey.a.b'), null)
  })

test('an API server that forbids reviews is an error, not a refusal', async () => {
  answer = { status: 403, body: { message: 'tokenreviews is forbidden' } }
  await assert.rejects(review('ey.a.b'), /answered a TokenReview with 403: .*forbidden/)
})

test('the setting is refused outside of Kubernetes, and nobody joins without it', () => {
  assert.deepEqual(joiningPods({ joinServiceAccounts: null }, {}), {})
  assert.throws(
    () => joiningPods({ joinServiceAccounts: [ACCOUNT] }, {}),
    /SANDYARD_JOIN_SERVICE_ACCOUNT is 'cloud\/cloud-worker'/,
  )
})
