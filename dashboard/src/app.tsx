import { path } from './lib/router.ts'
import { session } from './lib/session.ts'
import { Navigation } from './navigation.tsx'
import { routeOf, type PageModule } from './routes.ts'
import { Confirmation } from './ui/confirm.tsx'
import { Lazy } from './ui/lazy.tsx'
import { Loading } from './ui/load.tsx'
import { Empty, Page } from './ui/page.tsx'
import { Toasts } from './ui/toast.tsx'

const loadSignIn = (): Promise<PageModule> => import('./pages/sign-in.tsx')

/** The dashboard: the sign-in page, or the page of the address in its frame. */
export function App() {
  const isSignedIn = session.value !== null && session.value !== 'loading'
  return (
    <>
      {session.value === 'loading' ? <Loading /> : null}
      {session.value !== 'loading' && (!isSignedIn || path.value === '/sign-in') ? (
        <Lazy load={loadSignIn} parts={{}} />
      ) : null}
      {isSignedIn && path.value !== '/sign-in' ? <Frame /> : null}
      <Confirmation />
      <Toasts />
    </>
  )
}

function Frame() {
  const found = routeOf(path.value)
  return (
    <div class="frame">
      <a class="skip" href="#content">
        Skip to the content
      </a>
      <Navigation current={found?.route ?? null} />
      <main id="content" tabindex={-1}>
        {found === null ? (
          <Page title="No such page">
            <Empty title="Nothing is here">
              <p>The address may be mistyped, or the page has moved.</p>
              <a href="/">All sandboxes</a>
            </Empty>
          </Page>
        ) : (
          <Lazy load={found.route.load} parts={found.parts} />
        )}
      </main>
    </div>
  )
}
