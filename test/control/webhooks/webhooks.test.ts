import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { setQuota } from '../../../src/control/orgs/quotas.ts'
import {
  createWebhook, deleteWebhook, getWebhook, listWebhooks, rotateWebhookSecret, updateWebhook,
} from '../../../src/control/webhooks/webhooks.ts' // prettier-ignore
import { OLD_SECRETS_MAX, webhookSealContext, WEBHOOKS_MAX } from '../../../src/domain/webhooks/webhook.ts'
import type { Caller } from '../../../src/domain/orgs/caller.ts'
import * as webhooks from '../../../src/store/webhooks/webhooks.ts'
import { makeTestControl, type TestControl } from '../../support/control.ts'
import { addOrg } from '../../support/orgs.ts'
import { makeTestWebhooks } from '../../support/webhooks.ts'

const INPUT = {
  url: 'https://hooks.example.com/x',
  description: '',
  event_types: null,
  category: null,
  sandbox_id: null,
  actor: null,
}

let control: TestControl
let stranger: Caller
before(async () => {
  control = await makeTestControl({ webhooks: makeTestWebhooks([]) })
  stranger = await addOrg(control.deps, 'stranger')
})
after(() => control.close())

const create = (who: Caller = control.caller, input: Partial<typeof INPUT> = {}) =>
  createWebhook(control.deps, who, { ...INPUT, ...input })
const isProblem = (code: string) => (error: unknown) => Object(error).code === code

test('creates at once never exceed the quota, nor the bound of every organization', async () => {
  const crowded = await addOrg(control.deps, 'crowded')
  await setQuota(control.deps, crowded, { limit: 'max_webhooks', value: 3 })
  const results = await Promise.allSettled(Array.from({ length: 12 }, () => create(crowded)))
  assert.equal(results.filter(({ status }) => status === 'fulfilled').length, 3)
  for (const result of results) if (result.status === 'rejected') assert.ok(isProblem('quota_exceeded')(result.reason))
  const { items } = await listWebhooks(control.deps, crowded, { cursor: null, limit: 10 })
  assert.equal(items.length, 3)
  await deleteWebhook(control.deps, crowded, { id: items[0]?.id ?? assert.fail() })
  await create(crowded)
  await setQuota(control.deps, crowded, { limit: 'max_webhooks', value: null })
  for (let n = 3; n < WEBHOOKS_MAX; n++) await create(crowded)
  await assert.rejects(create(crowded), isProblem('quota_exceeded'))
})

test('a refusal names the field and repeats no URL', async () => {
  for (const url of ['https://10.0.0.1/hidden-path', 'http://example.com/hidden-path', 'nonsense hidden-path'])
    await assert.rejects(create(control.caller, { url }), (error) => {
      assert.ok(isProblem('invalid_request')(error))
      assert.equal(Object(error).details.field, 'url')
      assert.doesNotMatch(JSON.stringify(error) + String(error), /hidden-path/)
      return true
    })
  await assert.rejects(create(control.caller, { description: 'a\u0007' }), /description/)
  const { webhook } = await create()
  const change = { id: webhook.id, changes: { url: 'https://127.0.0.1/' } }
  await assert.rejects(updateWebhook(control.deps, control.caller, change), /url/)
  assert.equal((await getWebhook(control.deps, control.caller, webhook.id)).url, INPUT.url)
})

test('each rotation keeps the secrets before it for a day, up to a bound, and a secret opens only for its own webhook', async () => {
  const { deps, caller } = control
  const { webhook, secret } = await create()
  const secrets = [secret]
  for (let n = 0; n < OLD_SECRETS_MAX; n++)
    secrets.unshift((await rotateWebhookSecret(deps, caller, webhook.id)).secret)
  await assert.rejects(rotateWebhookSecret(deps, caller, webhook.id), isProblem('quota_exceeded'))
  const target = await deps.db.asOrg(caller.org_id, (q) => webhooks.findTarget(q, caller.org_id, webhook.id))
  assert.ok(target)
  const sealed = [target.secret_sealed, ...target.old_secrets.map((old) => Buffer.from(old.sealed, 'base64'))]
  const context = webhookSealContext(caller.org_id, webhook.id)
  assert.deepEqual(
    sealed.map((one) => deps.seal.open(one, context)),
    secrets,
  )
  assert.throws(() => deps.seal.open(target.secret_sealed, webhookSealContext(stranger.org_id, webhook.id)))
  const tomorrow = { ...deps.clock, now: () => new Date(deps.clock.now().getTime() + 86_400_001) }
  await rotateWebhookSecret({ ...deps, clock: tomorrow }, caller, webhook.id)
  const later = await deps.db.asOrg(caller.org_id, (q) => webhooks.findTarget(q, caller.org_id, webhook.id))
  assert.equal(later?.old_secrets.length, 1, 'expired secrets are forgotten')
})

test('an organization sees and changes no webhook of another', async () => {
  const { deps } = control
  const { webhook } = await create()
  for (const act of [
    () => getWebhook(deps, stranger, webhook.id),
    () => updateWebhook(deps, stranger, { id: webhook.id, changes: { paused: true } }),
    () => rotateWebhookSecret(deps, stranger, webhook.id),
    () => deleteWebhook(deps, stranger, { id: webhook.id }),
  ])
    await assert.rejects(act, isProblem('webhook_not_found'))
  assert.deepEqual((await listWebhooks(deps, stranger, { cursor: null, limit: 10 })).items, [])
})
