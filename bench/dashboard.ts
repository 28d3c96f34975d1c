import type { Page } from 'playwright-core'
import { mustCall } from '../test/support/api.ts'
import { whyNoBrowser } from '../test/support/browser.ts'
import { openDashboard, type DashboardWorld } from '../test/support/dashboard-world.ts'
import { DEMO_IMAGE } from '../test/support/sdk.ts'
import { formatNumber, median } from './support/numbers.ts'
import type { ResultRow } from './support/report.ts'

const SANDBOXES = 1_000
const ROUNDS = 5
const SCRIPT_GOAL_KIB = 250
const LIST_GOAL_MS = 300
/** How many sandboxes are created at once. */
const AT_ONCE = 20

/** The dashboard of a real server, measured in Debian's Chromium. */
export async function benchDashboard(): Promise<readonly ResultRow[]> {
  const missing = whyNoBrowser()
  if (missing !== false) throw new Error(`${missing}: \`npm run test:dashboard\` installs it`)
  const world = await openDashboard()
  try {
    const { id } = await mustCall(world.server, 'create_sandbox', {
      query: { start: 'true', wait_for: 'running' },
      body: { name: 'terminal', image: DEMO_IMAGE },
    })
    for (let made = 0; made < SANDBOXES; made += AT_ONCE)
      await Promise.all(Array.from({ length: AT_ONCE }, (_, at) => create(world, `box-${String(made + at)}`)))
    const rounds: FirstPage[] = []
    const prompts: number[] = []
    for (let round = 0; round < ROUNDS; round++) {
      rounds.push(await measureFirstPage(await world.open('/')))
      prompts.push(await measurePrompt(await world.open(`/sandboxes/${id}`)))
    }
    const scriptKib = median(rounds.map((one) => one.scriptKib))
    const listMs = median(rounds.map((one) => one.listMs))
    const fetchMs = median(rounds.map((one) => one.fetchMs))
    return [
      {
        benchmark: 'dashboard',
        what: 'JavaScript of the first page, compressed',
        measured: `${formatNumber(scriptKib)} KiB`,
        limit: '',
        ratio: null,
        goal: `<= ${String(SCRIPT_GOAL_KIB)} KiB`,
        isMet: scriptKib <= SCRIPT_GOAL_KIB,
      },
      {
        benchmark: 'dashboard',
        what: `a loaded page of a member until the list of ${String(SANDBOXES)} sandboxes shows`,
        measured: `${formatNumber(listMs)} ms`,
        limit: `its request alone ${formatNumber(fetchMs)} ms`,
        ratio: listMs / fetchMs,
        goal: `< ${String(LIST_GOAL_MS)} ms`,
        isMet: listMs < LIST_GOAL_MS,
        samples: rounds,
      },
      {
        benchmark: 'dashboard',
        what: 'a click on Terminal until its prompt',
        measured: `${formatNumber(median(prompts))} ms`,
        limit: '',
        ratio: null,
        goal: '',
        isMet: null,
        samples: prompts,
      },
    ]
  } finally {
    await world.close()
  }
}

type FirstPage = { readonly scriptKib: number; readonly listMs: number; readonly fetchMs: number }

/** Loads the page again, so that the browser has its files, and waits until the list shows. */
async function measureFirstPage(page: Page): Promise<FirstPage> {
  const row = page.getByRole('row', { name: /box-/ }).first()
  await row.waitFor()
  const scripts: number = await page.evaluate(() =>
    performance
      .getEntriesByType('resource')
      .filter(({ name }) => name.endsWith('.js'))
      .reduce((sum, entry) => sum + (entry as unknown as { encodedBodySize: number }).encodedBodySize, 0),
  )
  await page.reload({ waitUntil: 'commit' })
  await row.waitFor()
  const listMs: number = await page.evaluate(() => performance.now())
  const fetchMs: number = await page.evaluate(async () => {
    const startedMs = performance.now()
    await (await fetch('/v1/sandboxes?limit=100')).text()
    return performance.now() - startedMs
  })
  await page.context().close()
  return { scriptKib: scripts / 1024, listMs, fetchMs }
}

async function measurePrompt(page: Page): Promise<number> {
  const link = page.getByRole('link', { name: 'Terminal' })
  await link.waitFor()
  const startedMs = performance.now()
  await link.click()
  await page.getByRole('region', { name: 'Terminal 1' }).locator('.xterm-rows').getByText('#').first().waitFor()
  const tookMs = performance.now() - startedMs
  await page.context().close()
  return tookMs
}

async function create({ server }: DashboardWorld, name: string): Promise<void> {
  await mustCall(server, 'create_sandbox', { body: { name, image: DEMO_IMAGE } })
}
