import { useEffect, useState } from 'preact/hooks'
import icon from './icon.svg'
import { path } from './lib/router.ts'
import { chooseOrg, mayAdmin, session, signOut } from './lib/session.ts'
import { THEMES, theme } from './lib/theme.ts'
import { ROUTES, type Route } from './routes.ts'
import { attempt } from './ui/toast.tsx'

const GROUPS = ['Work', 'Organization', 'Server'] as const

/** The navigation: the pages that the member may open, and the account. On a phone it opens by a button. */
export function Navigation({ current }: { readonly current: Route | null }) {
  const [isOpen, setOpen] = useState(false)
  const here = path.value
  useEffect(() => setOpen(false), [here])
  const signedIn = session.value
  if (signedIn === null || signedIn === 'loading') return null
  const isAllowed = ({ needs }: Route): boolean =>
    needs === undefined || (needs === 'admin' ? mayAdmin.value : signedIn.is_operator)
  return (
    <header class={isOpen ? 'side is-open' : 'side'}>
      <a class="brand" href="/">
        <img src={icon} alt="" />
        Sandyard
      </a>
      <button type="button" class="button menu-button" aria-expanded={isOpen} onClick={() => setOpen(!isOpen)}>
        Menu
      </button>
      <nav aria-label="Pages">
        {GROUPS.map((group) => {
          const routes = ROUTES.filter(
            (route) => route.group === group && route.title !== undefined && isAllowed(route),
          )
          return routes.length === 0 ? null : (
            <div key={group}>
              <h2>{group}</h2>
              {routes.map((route) => (
                <a
                  key={route.pattern}
                  href={route.pattern === '' ? '/' : route.pattern}
                  aria-current={isWithin(route, current, here) ? 'page' : undefined}
                >
                  {route.title}
                </a>
              ))}
            </div>
          )
        })}
      </nav>
      <div class="account">
        {signedIn.orgs.length > 1 ? (
          <label>
            <span class="hidden">Organization</span>
            <select value={signedIn.org.id} onChange={(event) => attempt(() => chooseOrg(event.currentTarget.value))}>
              {signedIn.orgs.map(({ id, name }) => (
                <option key={id} value={id}>
                  {name}
                </option>
              ))}
            </select>
          </label>
        ) : (
          <strong>{signedIn.org.name}</strong>
        )}
        <span>
          <a href="/sessions">{signedIn.user.label}</a>
          <span class="faint"> · {signedIn.role}</span>
        </span>
        <label>
          <span class="hidden">Colours</span>
          <select
            value={theme.value}
            onChange={(event) => (theme.value = THEMES.find((one) => one === event.currentTarget.value) ?? 'system')}
          >
            <option value="system">Colours of the system</option>
            <option value="light">Light</option>
            <option value="dark">Dark</option>
          </select>
        </label>
        <button type="button" class="button small" onClick={() => attempt(signOut)}>
          Sign out
        </button>
      </div>
    </header>
  )
}

/** Whether a page belongs to the entry of the navigation: `/sandboxes/…` to that of the list at `/`. */
function isWithin(entry: Route, current: Route | null, here: string): boolean {
  if (entry === current) return true
  return entry.pattern === '' ? here.startsWith('/sandboxes/') : here.startsWith(`${entry.pattern}/`)
}
