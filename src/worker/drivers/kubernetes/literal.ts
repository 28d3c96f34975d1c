/** Kubernetes replaces `$(NAME)` in commands and variables. A doubled dollar sign is a plain one. */
export function literal(text: string): string {
  return text.replaceAll('$', '$$$$')
}
