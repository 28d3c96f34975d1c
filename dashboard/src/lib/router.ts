import { computed, signal } from '@preact/signals'

/** The address of the page. Links within the dashboard change it without loading anything again. */
export const address = signal(new URL(location.href))
export const path = computed(() => address.value.pathname)

export function go(to: string, { replace = false } = {}): void {
  if (replace) history.replaceState(null, '', to)
  else history.pushState(null, '', to)
  address.value = new URL(location.href)
  if (!replace) scrollTo(0, 0)
}

/** Follows links and the buttons of the browser. Call it once. */
export function startRouter(): void {
  addEventListener('popstate', () => {
    address.value = new URL(location.href)
  })
  document.addEventListener('click', (event) => {
    if (event.defaultPrevented || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey) return
    const link = event.target instanceof Element ? event.target.closest('a') : null
    if (link === null || link.target !== '' || link.hasAttribute('download') || link.origin !== location.origin) return
    if (/^\/(?:v1|auth)\//.test(link.pathname)) return
    event.preventDefault()
    go(link.href)
  })
}

/** Sets a parameter of the address, or removes it if the value is empty. */
export function setParameter(name: string, value: string): void {
  const next = new URL(address.value)
  if (value === '') next.searchParams.delete(name)
  else next.searchParams.set(name, value)
  go(next.href, { replace: true })
}

/** The parts of a path that match a pattern such as `/sandboxes/:id`, or null. */
export function match(pattern: string, given: string): Readonly<Record<string, string>> | null {
  const [wanted, seen] = [pattern.split('/'), given.replace(/\/$/, '').split('/')]
  if (wanted.length !== seen.length) return null
  const parts: Record<string, string> = {}
  for (const [index, part] of wanted.entries()) {
    const value = seen[index] ?? ''
    if (part.startsWith(':')) parts[part.slice(1)] = decodePart(value)
    else if (part !== value) return null
  }
  return parts
}

function decodePart(text: string): string {
  try {
    return decodeURIComponent(text)
  } catch {
    return text
  }
}
