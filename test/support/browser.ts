import assert from 'node:assert/strict'
import { existsSync, mkdirSync, readFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { delimiter, join } from 'node:path'
import { chromium, type Browser, type Page } from 'playwright-core'
import { ROOT } from './documents.ts'
import { TIMEOUT_FACTOR } from './timeout-factor.ts'

/** Debian's Chromium, as people see the dashboard. */

const PICTURES = join(ROOT, 'docs/img')
const LIMIT_MS = 15_000
const SIZES = { desktop: { width: 1280, height: 800 }, phone: { width: 390, height: 844 } } as const
const AXE = createRequire(import.meta.url).resolve('axe-core/axe.min.js')

/** Why no browser can run here, or false. For `{ skip }`. */
export function whyNoBrowser(): string | false {
  return findChromium() === undefined ? 'chromium is not installed' : false
}

function findChromium(): string | undefined {
  const folders = (process.env['PATH'] ?? '').split(delimiter)
  return folders.map((folder) => join(folder, 'chromium')).find((path) => existsSync(path))
}

export type Size = keyof typeof SIZES
type Cookie = Parameters<ReturnType<Page['context']>['addCookies']>[0][number]

/** A browser. Its pages fail the test on an error in the console, so read `complaints` at the end. */
export type TestBrowser = {
  /** Opens a page in a profile of its own. */
  open(url: string, options?: { readonly size?: Size; readonly cookies?: readonly Cookie[] }): Promise<Page>
  /** What the consoles of all pages complained about, but for requests that were refused on purpose. */
  readonly complaints: readonly string[]
  close(): Promise<void>
}

export async function openBrowser(): Promise<TestBrowser> {
  const executablePath = findChromium()
  assert.ok(executablePath !== undefined, 'chromium is not installed')
  const browser: Browser = await chromium.launch({
    executablePath,
    args: ['--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage', '--font-render-hinting=none'],
  })
  const complaints: string[] = []
  return {
    complaints,
    async open(url, { size = 'desktop', cookies = [] } = {}) {
      const context = await browser.newContext({
        viewport: SIZES[size],
        isMobile: size === 'phone',
        reducedMotion: 'reduce',
        colorScheme: 'light',
        locale: 'en-GB',
        timezoneId: 'UTC',
        acceptDownloads: true,
        bypassCSP: false,
      })
      await context.addCookies([...cookies])
      context.setDefaultTimeout(LIMIT_MS * TIMEOUT_FACTOR)
      const page = await context.newPage()
      const { origin } = new URL(url)
      page.on('console', (message) => {
        const text = message.text()
        const isOwn = page.url().startsWith(origin) // not the page of a provider
        if (isOwn && message.type() === 'error' && !isRefusal(text, message.location().url))
          complaints.push(`${page.url()}: ${text} (${message.location().url})`)
      })
      page.on('pageerror', (error) => complaints.push(`${page.url()}: ${error.stack ?? error.message}`))
      await page.goto(url)
      return page
    },
    close: () => browser.close(),
  }
}

/** The browser reports each 4xx. Those of the API are what the page shows. */
function isRefusal(text: string, url: string): boolean {
  return /responded with a status of 4\d\d/.test(text) && /^\/(?:v1|auth)\//.test(new URL(url).pathname)
}

/** Fails with every breach of the accessibility rules of WCAG 2.2 A and AA that axe-core finds on the page. */
export async function assertAccessible(page: Page): Promise<void> {
  // The library is evaluated by the protocol of the browser, which the Content-Security-Policy of the page doesn't bind.
  await page.evaluate(readFileSync(AXE, 'utf8'))
  const found: readonly string[] = await page.evaluate(async () => {
    const { axe } = globalThis as unknown as { axe: { run(options: object): Promise<{ violations: readonly Violation[] }> } } // prettier-ignore
    type Violation = { readonly id: string; readonly help: string; readonly nodes: readonly { readonly html: string; readonly failureSummary: string }[] } // prettier-ignore
    const tags = ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice']
    const { violations } = await axe.run({ runOnly: { type: 'tag', values: tags } })
    return violations.flatMap(({ id, help, nodes }) => nodes.map(({ html, failureSummary }) => `${id}: ${help}: ${html}: ${failureSummary}`)) // prettier-ignore
  })
  assert.deepEqual(found, [], `${page.url()} breaks rules of accessibility`)
}

/** Keeps a picture of the page for the README, if SANDYARD_TEST_PICTURES is set. */
export async function takePicture(page: Page, name: string): Promise<void> {
  if (process.env['SANDYARD_TEST_PICTURES'] === undefined) return
  mkdirSync(PICTURES, { recursive: true })
  await page.screenshot({ path: join(PICTURES, `${name}.png`), animations: 'disabled' })
}
