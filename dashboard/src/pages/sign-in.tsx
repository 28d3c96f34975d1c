import { useEffect, useState } from 'preact/hooks'
import icon from '../icon.svg'
import { get } from '../lib/api.ts'
import { useLoad } from '../lib/load.ts'
import { address, go } from '../lib/router.ts'
import { session, signInWithLink } from '../lib/session.ts'
import { Problem } from '../ui/problem.tsx'
import { Copy } from '../ui/small.tsx'

type Options = { readonly oidc: { readonly label: string } | null }

/** Where people sign in: by a one-time link, or at the provider of their organization. */
export default function SignIn() {
  const options = useLoad((signal) => get<Options>('/auth/options', { signal }), [])
  const [failure, setFailure] = useState<unknown>(null)
  const token = new URLSearchParams(address.value.hash.slice(1)).get('token')
  useEffect(() => {
    document.title = 'Sign in · Sandyard'
    if (token === null) {
      if (session.value !== null) go('/', { replace: true })
      return
    }
    history.replaceState(null, '', '/sign-in') // the token is neither kept in the history nor sent on
    signInWithLink(token).then(() => go('/', { replace: true }), setFailure)
  }, [token])
  if (token !== null && failure === null)
    return (
      <p class="sign-in" role="status">
        Signing in …
      </p>
    )
  return (
    <div class="sign-in">
      <main class="stack">
        <div class="brand">
          <img src={icon} alt="" />
          Sandyard
        </div>
        <h1>Sign in</h1>
        {failure === null ? null : <Problem error={failure} />}
        {options.error === null ? null : <Problem error={options.error} onRetry={options.reload} />}
        {(options.data?.oidc ?? null) === null ? null : (
          <a class="button primary" href="/auth/oidc">
            Sign in with {options.data?.oidc?.label}
          </a>
        )}
        <p>Open the link that the server prints when it starts. Each link works once.</p>
        <p class="faint">For a new link, run this on the server:</p>
        <Copy text="npx sandyard member login" label="Command" />
      </main>
    </div>
  )
}
