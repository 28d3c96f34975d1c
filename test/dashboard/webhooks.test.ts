import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import { mustCall } from '../support/api.ts'
import { assertAccessible, whyNoBrowser } from '../support/browser.ts'
import { openDashboard, type DashboardWorld } from '../support/dashboard-world.ts'
import { DEMO_IMAGE } from '../support/sdk.ts'
import { whyNoServer } from '../support/server.ts'
import { waitUntil } from '../support/wait.ts'
import { listenForWebhooks, type WebhookReceiver } from '../support/webhook-receiver.ts'

// Webhooks in a browser, with a receiver that verifies each message by the official library.

const LIMIT_MS = 30_000

describe('webhooks in the dashboard', { skip: whyNoServer() || whyNoBrowser() }, () => {
  let world: DashboardWorld
  let receiver: WebhookReceiver
  before(async () => {
    receiver = await listenForWebhooks()
    world = await openDashboard({ SANDYARD_WEBHOOKS_ALLOWED: '127.0.0.1' })
  })
  after(async () => {
    await world.close()
    await receiver.close()
  })

  test('a webhook is made, tested, gets an event, is paused, gets a new secret, and is deleted', async () => {
    const page = await world.open('/webhooks')
    await page.getByRole('heading', { name: 'No webhook yet' }).waitFor()
    await page.getByLabel('URL').fill('http://10.0.0.1/hook')
    await page.getByRole('button', { name: 'Create webhook' }).click()
    await page.locator('.refusal').first().waitFor()
    await page.getByLabel('URL').fill(`${receiver.url}/hook`)
    await page.getByLabel('Only these event types').fill('sandbox_created')
    await page.getByRole('button', { name: 'Create webhook' }).click()
    const secret = await page.getByLabel('Secret', { exact: true }).innerText()
    receiver.secrets.set('/hook', [secret.trim()])
    await assertAccessible(page)

    await page.getByRole('link', { name: `${receiver.url}/hook` }).click()
    await page.getByRole('heading', { name: 'Nothing was sent yet' }).waitFor()
    assert.ok(!(await page.content()).includes(secret.trim()))
    await page.getByRole('button', { name: 'Send a test' }).click()
    await page.getByRole('heading', { name: 'The test was taken' }).waitFor()
    await mustCall(world.server, 'create_sandbox', { body: { name: 'told', image: DEMO_IMAGE } })
    await waitUntil(() => receiver.received.some(({ type }) => type === 'sandbox_created'), LIMIT_MS)
    const row = page.getByRole('row', { name: /sandbox_created delivered 204/ })
    await waitUntil(async () => {
      await page.getByRole('button', { name: 'Look again' }).click()
      return await row.isVisible()
    }, LIMIT_MS)
    await assertAccessible(page)

    await row.getByRole('button', { name: 'Show' }).click()
    await page.getByRole('dialog').getByLabel('Request').getByText('"told"').waitFor()
    await assertAccessible(page)
    await page.getByRole('dialog').getByRole('button', { name: 'Send again' }).click()
    const sent = () => receiver.received.filter(({ type }) => type === 'sandbox_created').map(({ id }) => id)
    await waitUntil(() => sent().length === 2, LIMIT_MS)
    assert.equal(new Set(sent()).size, 1, 'it is sent again with the same id')

    await page.getByRole('button', { name: 'Pause' }).click()
    await page.getByText('paused', { exact: true }).waitFor()
    await page.getByRole('button', { name: 'Resume' }).click()
    await page.getByText('active', { exact: true }).waitFor()
    await page.getByRole('button', { name: 'Rotate secret' }).click()
    await page.getByRole('dialog').getByRole('button', { name: 'Rotate' }).click()
    assert.notEqual((await page.getByLabel('Secret', { exact: true }).innerText()).trim(), secret.trim())
    await page.getByRole('button', { name: 'Delete' }).click()
    await page.getByRole('dialog').getByRole('button', { name: 'Delete' }).click()
    await page.getByRole('heading', { name: 'No webhook yet' }).waitFor()
    assert.equal(receiver.forged, 0)
  })
})
