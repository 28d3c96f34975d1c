import { useEffect, useState } from 'preact/hooks'
import icon from '../icon.svg'
import { get } from '../lib/api.ts'
import { useLoad } from '../lib/load.ts'
import { address, go } from '../lib/router.ts'
import { session, signInWithLink } from '../lib/session.ts'
import type { SignInOptions, SignInRefusal } from '../lib/types.ts'
import { Problem } from '../ui/problem.tsx'
import { Copy } from '../ui/small.tsx'

/** Why signing in at the provider failed, and what to do. The server names only the code, so that no link can bring words of its own. */
const REFUSALS: Readonly<Record<SignInRefusal, string>> = {
  oidc_failed: 'The sign-in was not completed, or it took too long. Start it again.',
  oidc_denied: 'The provider did not sign you in. Start again, or ask who manages your account there.',
  oidc_no_member: 'You are not a member of any organization here. Ask an owner or admin to invite you.',
  oidc_email_unverified: 'The provider has not verified your e-mail address. Verify it there, then sign in again.',
  oidc_other_identity:
    'This e-mail address belongs to another account of the provider. Ask an owner to remove the member and invite you.',
  oidc_unavailable: 'The provider can not be reached. Try again in a moment.',
}

/** The words for the code in the fragment of the address, or null if there is none. */
function refusalIn(fragment: URLSearchParams): Error | null {
  const code = fragment.get('error')
  if (code === null) return null
  const [, words = REFUSALS.oidc_failed] = Object.entries(REFUSALS).find(([one]) => one === code) ?? []
  return new Error(words)
}

/** Where people sign in: by a one-time link, or at the provider of their organization. */
export default function SignIn() {
  const options = useLoad((signal) => get<SignInOptions>('/auth/options', { signal }), [])
  const fragment = new URLSearchParams(address.value.hash.slice(1))
  const [failure, setFailure] = useState<unknown>(() => refusalIn(fragment))
  const token = fragment.get('token')
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
